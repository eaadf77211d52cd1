//! Charts as SVG for the reports of the laboratory: lines over an axis, and bars in groups.
//!
//! Called by `bomb/report.rs` and `bench/report/page.rs`. Names are users' texts: plotters escapes
//! them, the label is escaped here. A legend is above the plot, never on it. Bounds: the size of a
//! chart follows from its series and bars alone.

mod axis;
mod bars;
mod legend;
mod lines;
mod look;
mod marks;
#[cfg(test)]
mod tests;

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) use axis::{Across, Unit};
pub(crate) use bars::{Bar, Bars, Group};
use legend::Legend;
pub(crate) use lines::{Lines, Point, Series};
pub(crate) use look::{Look, Palette};

use crate::page::escaped;

/// Width of a chart, pixels.
const WIDTH: u32 = 860;
/// Height of the line with the title, pixels.
const TITLE_HEIGHT: u32 = 32;
/// Colour of texts.
const INK: RGBColor = RGBColor(51, 51, 51);
/// Colour of axes.
const PALE: RGBColor = RGBColor(150, 150, 150);
/// Colour of the grid.
const GRID: RGBColor = RGBColor(232, 232, 232);
/// Size of labels in plotters' units, which are 1.24 to the pixel.
const LABEL_SIZE: f64 = 15.0;
/// The meaning of a hollow mark.
const LIMITED: &str = "hollow: generator or origin was the limit";

/// A chart that could not be drawn, which would be a bug.
type Failed = DrawingAreaErrorKind<io::Error>;
/// Where a chart is drawn.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a whole picture: title, legend, and a plot of this many pixels below them.
fn picture(
    title: &str,
    legend: &Legend,
    plot_height: u32,
    plot: impl FnOnce(&Area<'_>) -> Result<(), Failed>,
) -> Result<String, String> {
    let mut svg = String::new();
    let above = TITLE_HEIGHT + legend.height();
    draw(&mut svg, above + plot_height, |area| {
        area.draw_text(title, &label(19.0, HPos::Left), (12, 18))?;
        legend.draw(area, TITLE_HEIGHT as i32)?;
        plot(&area.split_vertically(above).1)
    })
    .map_err(|error| format!("{title}: {error}"))?;
    Ok(svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(title)), 1))
}

fn draw(
    svg: &mut String,
    height: u32,
    content: impl FnOnce(&Area<'_>) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    content(&area)?;
    area.present()
}

/// Style of a text, centred on its line.
fn label(size: f64, anchor: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK).pos(Pos::new(anchor, VPos::Center))
}

/// Returns approximately how wide a label is, pixels. No font is available; browsers' sans-serif
/// letters are this wide on average.
fn width_px(text: &str) -> i32 {
    (text.chars().count() as f64 * LABEL_SIZE / 1.24 * 0.6).ceil() as i32
}

/// Returns the beginning of a text that would be wider than that.
fn shortened(text: &str, width_px_max: i32) -> String {
    if width_px(text) <= width_px_max {
        return text.to_owned();
    }
    let mut short: String = text.to_owned();
    while !short.is_empty() && width_px(&short) + width_px("…") > width_px_max {
        short.pop();
    }
    short + "…"
}
