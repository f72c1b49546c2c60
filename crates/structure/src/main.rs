//! Lists the cycles between the modules of crates. For each cycle it lists the edges, and for each edge the number of
//! references and the first one. An edge with few references is the easiest to remove.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use tollgate_structure::{CrateRoot, StructureError, Workspace, module_cycles};

fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.is_empty() {
        arguments.push(".".to_owned());
    }
    let mut code = ExitCode::SUCCESS;
    for argument in arguments {
        let listing = list(&argument)
            .unwrap_or_else(|error| Listing { text: String::new(), errors: vec![error] });
        print(io::stdout(), &listing.text);
        for error in listing.errors {
            let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            print(io::stderr(), &format!("error: {error}{source}\n"));
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// The cycles as text, and the errors of crates that could not be read.
struct Listing {
    text: String,
    errors: Vec<StructureError>,
}

/// Lists the cycles of the workspace or crate in a directory, or of the crate of this workspace with that name.
fn list(argument: &str) -> Result<Listing, StructureError> {
    let path = Path::new(argument);
    let directory = path.canonicalize().ok().filter(|path| path.join("Cargo.toml").is_file());
    let workspace = Workspace::read(directory.as_deref().unwrap_or(Path::new(".")))?;
    let is_wanted = |root: &&CrateRoot| match &directory {
        Some(directory) => workspace.root.join(&root.directory).starts_with(directory),
        None => root.name.split('/').next() == Some(argument),
    };
    let mut listing = Listing { text: String::new(), errors: Vec::new() };
    let (mut cycles, mut crates) = (0, 0);
    for root in workspace.roots.iter().filter(is_wanted) {
        crates += 1;
        match module_cycles(&workspace, root) {
            Ok(found) => {
                cycles += found.len();
                listing.text.extend(found.iter().map(|cycle| format!("{cycle}\n\n")));
            }
            // The other crates are still listed.
            Err(error) => listing.errors.push(error),
        }
    }
    if crates == 0 {
        return Err(StructureError::NoCrate(argument.to_owned()));
    }
    listing.text += &format!("{argument}: {cycles} cycles in {crates} libraries and binaries\n");
    Ok(listing)
}

/// Prints text. Ignores errors, because a closed output has no reader.
fn print(mut output: impl Write, text: &str) {
    let _ = output.write_all(text.as_bytes());
}
