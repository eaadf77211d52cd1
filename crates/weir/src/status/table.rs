//! Tables for people: columns as wide as their content, without the least important ones on a
//! narrow terminal. Pure.

/// Spaces between columns, and their minimum on a narrow terminal.
const GAP: usize = 2;
const GAP_MIN: usize = 1;

/// The look of a cell on a terminal that may be coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Tone {
    /// Like all text.
    #[default]
    Plain,
    /// All is well.
    Good,
    /// Needs attention.
    Odd,
    /// Something is wrong.
    Bad,
}

impl Tone {
    /// Returns the text in this tone.
    pub(crate) fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            _ if !colour => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Odd => "33",
            Tone::Bad => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// One cell.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell { text: text.into(), tone: Tone::Plain }
    }
}

/// A column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    /// Its heading.
    pub(crate) name: &'static str,
    /// Aligned left, as text; numbers are aligned right.
    pub(crate) left: bool,
    /// 0: always shown; of the others the highest is left out first on a narrow terminal.
    pub(crate) spare: u8,
}

/// Returns a column of text that is always shown.
pub(crate) const fn text(name: &'static str) -> Column {
    Column { name, left: true, spare: 0 }
}

/// Returns a column of numbers; `spare` as in [`Column`].
pub(crate) const fn number(name: &'static str, spare: u8) -> Column {
    Column { name, left: false, spare }
}

/// A row, and the text below it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) cells: Vec<Cell>,
    pub(crate) below: Option<Cell>,
}

/// Returns the whole table, a line for each row; no wider than `width` as long as columns can be
/// spared.
pub(crate) fn table(
    columns: &[Column],
    rows: &[Row],
    indent: usize,
    width: usize,
    colour: bool,
) -> String {
    Layout::new(columns, rows, indent, width, colour).table(rows)
}

/// Returns the columns that fit, with their widths, and the gap between them. On a narrow terminal
/// the gap shrinks first.
fn fitting(
    columns: &[Column],
    rows: &[Row],
    indent: usize,
    width: usize,
) -> (Vec<(usize, usize)>, usize) {
    let widest = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.cells.get(at));
        cells
            .map(|cell| cell.text.chars().count())
            .chain([columns[at].name.len()])
            .max()
            .unwrap_or(0)
    };
    let mut shown: Vec<(usize, usize)> = (0..columns.len()).map(|at| (at, widest(at))).collect();
    loop {
        let wide: usize = shown.iter().map(|(_, wide)| wide).sum();
        let gaps = shown.len().saturating_sub(1);
        let fits = |gap: &usize| indent + wide + gaps * gap <= width;
        if let Some(gap) = [GAP, GAP_MIN].into_iter().find(fits) {
            return (shown, gap);
        }
        match shown.iter().enumerate().max_by_key(|(_, (at, _))| columns[*at].spare) {
            Some((place, (at, _))) if columns[*at].spare > 0 => drop(shown.remove(place)),
            _ => return (shown, GAP_MIN),
        }
    }
}

/// The layout of lines, shared by several tables below each other.
pub(crate) struct Layout<'a> {
    columns: &'a [Column],
    /// Columns with their widths.
    shown: Vec<(usize, usize)>,
    gap: usize,
    indent: usize,
    colour: bool,
}

impl<'a> Layout<'a> {
    /// Makes a layout that fits all these rows.
    pub(crate) fn new(
        columns: &'a [Column],
        rows: &[Row],
        indent: usize,
        width: usize,
        colour: bool,
    ) -> Layout<'a> {
        let (shown, gap) = fitting(columns, rows, indent, width);
        Layout { columns, shown, gap, indent, colour }
    }

    /// Returns a table of some of the rows.
    pub(crate) fn table(&self, rows: &[Row]) -> String {
        let mut out = String::new();
        let heads: Vec<Cell> = self.columns.iter().map(|column| column.name.into()).collect();
        self.line(&mut out, &heads);
        for row in rows {
            self.line(&mut out, &row.cells);
            if let Some(below) = &row.below {
                out.push_str(&" ".repeat(self.indent + 2));
                out.push_str(&below.tone.paint(&below.text, self.colour));
                out.push('\n');
            }
        }
        out
    }

    fn line(&self, out: &mut String, cells: &[Cell]) {
        let mut text = " ".repeat(self.indent);
        for (place, (at, wide)) in self.shown.iter().enumerate() {
            let empty = Cell::default();
            let cell = cells.get(*at).unwrap_or(&empty);
            let pad = " ".repeat(wide - cell.text.chars().count());
            let painted = cell.tone.paint(&cell.text, self.colour);
            text += &" ".repeat(if place == 0 { 0 } else { self.gap });
            text += &if self.columns[*at].left {
                format!("{painted}{pad}")
            } else {
                format!("{pad}{painted}")
            };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [text("NAME"), number("SPARE", 1), number("N", 0)];

    fn rows() -> Vec<Row> {
        let below = Some(Cell { text: "why".to_owned(), tone: Tone::Bad });
        vec![
            Row { cells: vec!["a".into(), "1".into(), "22222".into()], below },
            Row { cells: vec!["größer".into(), "1".into(), "3".into()], below: None },
        ]
    }

    #[test]
    fn columns_are_aligned_and_spared() {
        let wide =
            "  NAME    SPARE      N\n  a           1  22222\n    why\n  größer      1      3\n";
        assert_eq!(table(&COLUMNS, &rows(), 2, 22, false), wide);
        assert_eq!(
            table(&COLUMNS, &rows(), 2, 21, false).lines().last(),
            Some("  größer     1     3")
        );
        let narrow = "  NAME        N\n  a       22222\n    why\n  größer      3\n";
        assert_eq!(table(&COLUMNS, &rows(), 2, 19, false), narrow);
        // Columns that cannot be spared remain.
        let tight = "  NAME       N\n  a      22222\n    why\n  größer     3\n";
        assert_eq!(table(&COLUMNS, &rows(), 2, 1, false), tight);
    }

    #[test]
    fn colours_do_not_move_columns() {
        let plain = table(&COLUMNS, &rows(), 2, 80, false);
        let coloured = table(&COLUMNS, &rows(), 2, 80, true);
        assert!(coloured.contains("\x1b[31mwhy\x1b[0m"));
        assert_eq!(coloured.replace("\x1b[31m", "").replace("\x1b[0m", ""), plain);
    }
}
