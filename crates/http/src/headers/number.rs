//! Values that are numbers.

use ::http::header::HeaderValue;

/// Returns a number as a header value. Takes one allocation, or none if the number is below 1,000.
pub(super) fn number(number: u64) -> HeaderValue {
    if let Some(text) = small(number) {
        return HeaderValue::from_static(text);
    }
    // OK because digits are printable.
    HeaderValue::from_str(itoa::Buffer::new().format(number)).unwrap_or_else(|_| number.into())
}

/// `000001002…999`: remaining units are usually a small number.
static SMALL: [u8; 3_000] = {
    let mut digits = [0; 3_000];
    let mut number = 0;
    while number < 1_000 {
        digits[3 * number] = b'0' + (number / 100) as u8;
        digits[3 * number + 1] = b'0' + (number / 10 % 10) as u8;
        digits[3 * number + 2] = b'0' + (number % 10) as u8;
        number += 1;
    }
    digits
};

fn small(number: u64) -> Option<&'static str> {
    let at = usize::try_from(number).ok().filter(|small| *small < 1_000)? * 3;
    let zeros = usize::from(number < 100) + usize::from(number < 10);
    str::from_utf8(SMALL.get(at + zeros..at + 3)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_are_written_like_large_ones() {
        for n in (0..2_000).chain([u64::MAX]) {
            assert_eq!(number(n).to_str().ok(), Some(&*n.to_string()));
        }
    }
}
