//! The contents of files: their names in messages, their largest size and their text.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::problem::Report;

/// Returns the path of a file that `file` names, relative to the directory of `file`.
pub(super) fn beside(file: &str, named: &Path) -> PathBuf {
    let directory = Path::new(file).parent().unwrap_or(Path::new(""));
    directory.join(named)
}

/// Returns the contents of a file, or an error if they are larger than `max_bytes`.
pub(super) fn bounded(bytes: Vec<u8>, max_bytes: usize) -> io::Result<Vec<u8>> {
    if bytes.len() > max_bytes {
        let reason = format!("it is {}", too_large(max_bytes));
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// Says that a file is larger than `max_bytes`.
pub(super) fn too_large(max_bytes: usize) -> String {
    match max_bytes >> 20 {
        0 => format!("larger than {} KiB", max_bytes >> 10),
        mib => format!("larger than {mib} MiB"),
    }
}

/// Returns the text of a file without its byte order mark. Contents that are not UTF-8 are reported where they begin.
pub(super) fn text<'b>(bytes: &'b [u8], report: &mut Report) -> Option<&'b str> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    str::from_utf8(bytes)
        .inspect_err(|error| {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            report.error(crate::position::end_of(&before), "not UTF-8", "save the file as UTF-8");
        })
        .ok()
}
