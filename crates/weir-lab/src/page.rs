//! A page of a report as one HTML file that needs nothing else: its frame, style, tables and escaping.
//!
//! Called by `bomb/report.rs` and `bench/report/page.rs`. Every text is escaped here, whoever typed it.

use std::fmt::Write as _;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222;\
    background:#fff}h2{margin-top:2em}h3{margin:1.5em 0 0}.wide{overflow-x:auto}\
    table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto;margin:.5em 0}\
    .limit{color:#b00;font-weight:600}tr.limited td{color:#767676;font-style:italic}\
    .pass td:last-child{color:#060}.miss td:last-child{color:#b00;font-weight:600}.note{color:#555;font-size:13px}\
    pre{background:#f5f5f5;padding:.8em;overflow:auto}";

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
            <meta name=\"viewport\" content=\"width=device-width\">";
        Page { html: format!("{head}<title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n") }
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

    /// A paragraph that ends with a link to a file beside the page.
    pub(crate) fn link(&mut self, text: &str, file: &str) {
        let file = escaped(file);
        let _ = writeln!(self.html, "<p>{}<a href=\"{file}\">{file}</a>.</p>", escaped(text));
    }

    /// A text as it is, with its line ends.
    pub(crate) fn verbatim(&mut self, text: &str) {
        let _ = writeln!(self.html, "<pre>{}</pre>", escaped(text));
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
    html: String,
}

impl Table {
    /// A table with the names of its columns.
    pub(crate) fn new(columns: &[&str]) -> Table {
        let mut table = Table { html: String::from("<tr>") };
        table.cells("th", columns);
        table
    }

    /// A row.
    pub(crate) fn row<Text: AsRef<str>>(&mut self, cells: &[Text]) {
        self.html.push_str("<tr>");
        self.cells("td", cells);
    }

    /// A row of a class of the style: `limited`.
    pub(crate) fn row_of<Text: AsRef<str>>(&mut self, class: &str, cells: &[Text]) {
        let _ = write!(self.html, "<tr class=\"{}\">", escaped(class));
        self.cells("td", cells);
    }

    fn cells<Text: AsRef<str>>(&mut self, kind: &str, cells: &[Text]) {
        for cell in cells {
            let _ = write!(self.html, "<{kind}>{}", escaped(cell.as_ref()));
        }
        self.html.push('\n');
    }
}

/// A text as HTML shows it, between tags or in quotes.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
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
        let html = page.finish();
        assert_eq!(html.matches(shown).count(), 15, "{html}");
        assert!(!html.contains("<script"), "{html}");
    }
}
