//! A page of a report as one self-contained HTML file: its frame, style, tables and escaping.
//!
//! Called by `bomb/report.rs` and `bench/report/page.rs`. Every text is escaped here, whatever its
//! source.

use std::fmt::Write as _;

/// A narrow screen shows each row of a table as a card: the left column then names the columns.
const STYLE: &str = include_str!("page.css");

/// A page that grows from top to bottom.
#[derive(Debug)]
pub(crate) struct Page {
    html: String,
}

impl Page {
    /// A page with its title as first heading.
    pub(crate) fn new(title: &str) -> Page {
        let title = escaped(title);
        let head = "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
            <meta name=\"viewport\" content=\"width=device-width\">\
            <meta name=\"color-scheme\" content=\"light dark\">";
        Page {
            html: format!(
                "{head}<title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n"
            ),
        }
    }

    /// A heading of the second order.
    pub(crate) fn heading(&mut self, text: &str) {
        let _ = writeln!(self.html, "<h2>{}</h2>", escaped(text));
    }

    /// A heading of the third order.
    pub(crate) fn subheading(&mut self, text: &str) {
        let _ = writeln!(self.html, "<h3>{}</h3>", escaped(text));
    }

    /// A paragraph.
    pub(crate) fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.html, "<p>{}</p>", escaped(text));
    }

    /// A paragraph of a class of the style: `limit` or `note`.
    pub(crate) fn paragraph_of(&mut self, class: &str, text: &str) {
        let _ = writeln!(self.html, "<p class=\"{}\">{}</p>", escaped(class), escaped(text));
    }

    /// Adds a paragraph that ends with a link to a file beside the page.
    pub(crate) fn link(&mut self, text: &str, file: &str) {
        let file = escaped(file);
        let _ = writeln!(self.html, "<p>{}<a href=\"{file}\">{file}</a>.</p>", escaped(text));
    }

    /// Adds a text unchanged, with its line ends.
    pub(crate) fn verbatim(&mut self, text: &str) {
        let _ = writeln!(self.html, "<pre>{}</pre>", escaped(text));
    }

    /// Adds a part that is shown when readers open it.
    ///
    /// # Errors
    /// Those of the content.
    pub(crate) fn folded(
        &mut self,
        title: &str,
        content: impl FnOnce(&mut Page) -> Result<(), String>,
    ) -> Result<(), String> {
        let _ = writeln!(self.html, "<details><summary>{}</summary>", escaped(title));
        content(self)?;
        self.html.push_str("</details>\n");
        Ok(())
    }

    /// A table.
    pub(crate) fn table(&mut self, table: &Table) {
        let _ = write!(self.html, "<div class=\"wide\"><table>\n{}</table></div>\n", table.html);
    }

    /// A chart as `chart` draws it: SVG in which texts are escaped already.
    pub(crate) fn chart(&mut self, svg: &str) {
        let _ = writeln!(self.html, "<figure style=\"margin:0\">{svg}</figure>");
    }

    /// The whole file.
    pub(crate) fn finish(self) -> String {
        self.html + "</html>\n"
    }
}

/// A table that grows by rows.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<String>,
    html: String,
}

impl Table {
    /// A table with the names of its columns.
    pub(crate) fn new(columns: &[&str]) -> Table {
        let heads =
            columns.iter().map(|column| format!("<th>{}", escaped(column))).collect::<String>();
        Table {
            columns: columns.iter().map(|column| escaped(column)).collect(),
            html: format!("<tr>{heads}\n"),
        }
    }

    /// A row.
    pub(crate) fn row<Text: AsRef<str>>(&mut self, cells: &[Text]) {
        self.html.push_str("<tr>");
        self.cells(cells);
    }

    /// A row of a class of the style: `limited`, `text`.
    pub(crate) fn row_of<Text: AsRef<str>>(&mut self, class: &str, cells: &[Text]) {
        let _ = write!(self.html, "<tr class=\"{}\">", escaped(class));
        self.cells(cells);
    }

    fn cells<Text: AsRef<str>>(&mut self, cells: &[Text]) {
        for (nth, cell) in cells.iter().enumerate() {
            // The first one names the row.
            match self.columns.get(nth).filter(|name| nth > 0 && !name.is_empty()) {
                Some(name) => drop(write!(self.html, "<td data-of=\"{name}\">")),
                None => self.html.push_str("<td>"),
            }
            self.html.push_str(&escaped(cell.as_ref()));
        }
        self.html.push('\n');
    }
}

/// A text as HTML shows it, between tags or in quotes.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_typed_is_escaped_wherever_it_stands() {
        let evil = "<script>\"'&";
        let shown = "&lt;script&gt;&quot;&#39;&amp;";
        let mut table = Table::new(&[evil]);
        table.row(&[evil]);
        table.row_of(evil, &[evil]);
        let mut page = Page::new(evil);
        page.heading(evil);
        page.paragraph(evil);
        page.paragraph_of(evil, evil);
        page.verbatim(evil);
        page.subheading(evil);
        page.link(evil, evil);
        page.table(&table);
        page.folded(evil, |page| {
            page.paragraph(evil);
            Ok(())
        })
        .unwrap();
        let html = page.finish();
        assert_eq!(html.matches(shown).count(), 17, "{html}");
        assert!(!html.contains("<script"), "{html}");
    }
}
