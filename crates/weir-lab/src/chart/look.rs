//! How a series looks: the same name has the same colour, mark and dash in every chart of a page.
//!
//! Called by reports, which make one [`Palette`] for each page. Colours can be distinguished even
//! by people who don't see red and green (Okabe and Ito, 2008; without yellow, which is too pale on
//! white); marks and dashes distinguish the rest.

use plotters::prelude::*;

/// Colours in the order of names.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(85, 85, 85),
];
/// Corners of marks, pixels from the middle: disc, square, triangle up, diamond, triangle down.
/// Their number has no factor in common with that of the colours, so that 35 names differ before
/// any dash.
const MARKS: [&[(i32, i32)]; 5] = [
    &[(4, 0), (4, 2), (2, 4), (-2, 4), (-4, 2), (-4, -2), (-2, -4), (2, -4), (4, -2)],
    &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
    &[(0, -5), (5, 4), (-5, 4)],
    &[(0, -5), (5, 0), (0, 5), (-5, 0)],
    &[(0, 5), (5, -4), (-5, -4)],
];
/// Length of a dash and of the gap after it, pixels: the next one each time that the colours start
/// over.
const DASHES: [Option<(i32, i32)>; 4] = [None, Some((9, 5)), Some((2, 4)), Some((16, 4))];

/// Colour, mark and dash of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Look {
    pub(super) colour: RGBColor,
    /// Corners of the mark, pixels from its middle.
    pub(super) mark: &'static [(i32, i32)],
    /// None is a solid line.
    pub(super) dash: Option<(i32, i32)>,
}

impl Look {
    /// Returns the look of a name by its place among all names.
    fn at(index: usize) -> Look {
        let dash = DASHES[index / COLOURS.len() % DASHES.len()];
        Look { colour: COLOURS[index % COLOURS.len()], mark: MARKS[index % MARKS.len()], dash }
    }

    /// Returns a round mark in a colour that no series has.
    pub(super) fn of_any(colour: RGBColor) -> Look {
        Look { colour, ..Look::at(0) }
    }

    /// The same with a finely dashed line, for a second series of the same name.
    pub(crate) fn dashed(self) -> Look {
        Look { dash: Some((4, 3)), ..self }
    }
}

/// The names of a page in their order.
#[derive(Debug)]
pub(crate) struct Palette {
    names: Vec<String>,
}

impl Palette {
    /// Assigns looks to these names; a name that comes again changes nothing.
    pub(crate) fn new<'a>(all: impl IntoIterator<Item = &'a str>) -> Palette {
        let mut names: Vec<String> = Vec::new();
        for name in all {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        Palette { names }
    }

    /// Returns how a name looks. A name that is not of this page looks like the next new one.
    pub(crate) fn look(&self, name: &str) -> Look {
        Look::at(self.names.iter().position(|known| known == name).unwrap_or(self.names.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_look_and_many_names_differ() {
        let names: Vec<String> = (0..40).map(|at| format!("c{at}")).collect();
        let palette = Palette::new(names.iter().map(String::as_str).chain(["c3", "c0"]));
        assert_eq!(palette.look("c3"), Look::at(3));
        assert_eq!(palette.look("unknown"), Look::at(40));
        for (at, name) in names.iter().enumerate() {
            let others = &names[..at];
            assert!(others.iter().all(|other| palette.look(other) != palette.look(name)), "{name}");
        }
    }
}
