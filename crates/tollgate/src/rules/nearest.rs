//! The name that someone meant who wrote another.

/// The most names that are compared: a file may have thousands, and a mistake in each.
const MAX_COMPARED: usize = 1_000;

/// Names are not longer.
const MAX_CHARS: usize = 64;

/// The name nearest to `text`, if it is near: one letter in three is wrong at most, and never more than two.
///
/// `refil` is near to `refill`, `capcaity` to `capacity`; `burst` to neither.
pub(super) fn nearest<'n>(text: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let letters: Vec<char> = text.chars().take(MAX_CHARS + 1).collect();
    let most = (letters.len() / 3).min(2);
    if most == 0 || letters.len() > MAX_CHARS {
        return None;
    }
    let mut nearest = None;
    let mut most = most;
    let mut other = Vec::with_capacity(MAX_CHARS);
    for name in names.into_iter().take(MAX_COMPARED) {
        other.clear();
        other.extend(name.chars().take(MAX_CHARS + 1));
        if other.len() > MAX_CHARS || other.len().abs_diff(letters.len()) > most {
            continue;
        }
        let distance = distance(&letters, &other, most);
        if distance < most || (distance == most && nearest.is_none()) {
            (nearest, most) = (Some(name), distance);
        }
    }
    nearest
}

/// How many letters must be put in, left out, replaced or swapped with the next; case does not count.
/// Some number above `most` if there are more.
fn distance(text: &[char], name: &[char], most: usize) -> usize {
    let same = |a: usize, b: usize| text[a].eq_ignore_ascii_case(&name[b]);
    let mut before = [0; MAX_CHARS + 1];
    let mut above: [usize; MAX_CHARS + 1] = std::array::from_fn(|column| column);
    for row in 1..=text.len() {
        let mut here = [row; MAX_CHARS + 1];
        for column in 1..=name.len() {
            let replaced = above[column - 1] + usize::from(!same(row - 1, column - 1));
            here[column] = replaced.min(above[column] + 1).min(here[column - 1] + 1);
            let may_swap = row > 1 && column > 1;
            if may_swap && same(row - 1, column - 2) && same(row - 2, column - 1) {
                here[column] = here[column].min(before[column - 2] + 1);
            }
        }
        // A swap reaches back over one row.
        let least = |row: &[usize]| row[..=name.len()].iter().min().copied().unwrap_or(0);
        if least(&here) > most && least(&above) > most {
            return most + 1;
        }
        (before, above) = (above, here);
    }
    above[name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_fingers_is_near_and_another_word_is_not() {
        let names = ["capacity", "refill", "limit", "limits", "by"];
        for (text, meant) in [
            ("refil", Some("refill")),
            ("capcaity", Some("capacity")),
            ("Limit", Some("limit")),
            ("limts", Some("limits")),
            ("burst", None),
            ("b", None),
            ("", None),
            ("capäcity", Some("capacity")),
        ] {
            assert_eq!(nearest(text, names), meant, "{text}");
        }
    }
}
