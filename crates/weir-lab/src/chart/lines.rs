//! A chart of lines: several series over an axis that is linear, logarithmic or one of quantiles;
//! up from 0.
//!
//! Called by reports. An unknown value (a value that is not finite) breaks the line.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::axis::{Across, Axis};
use super::legend::Legend;
use super::{Area, Failed, GRID, INK, LABEL_SIZE, Look, PALE, WIDTH, label, marks, picture};

/// Height of the plot with its labels, pixels.
const HEIGHT: u32 = 290;
/// Space for the labels at the left, with the name of the axis, and free space beside it and at the
/// right, pixels.
const LEFT: u32 = 66;
const MARGIN: u32 = 8;
const RIGHT: u32 = 16;
/// Space for the labels below.
const BELOW: u32 = 46;
/// A series of more points than this has no marks: the line is sufficient.
const MARKED_MAX: usize = 40;

/// A chart of lines.
pub(crate) struct Lines {
    /// What it shows.
    pub(crate) title: String,
    /// How values are spread over the horizontal axis, and what they are.
    pub(crate) across: Across,
    pub(crate) across_name: &'static str,
    /// What the values are, with their unit.
    pub(crate) up_name: &'static str,
    pub(crate) series: Vec<Series>,
}

/// One line.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) look: Look,
    /// From left to right.
    pub(crate) points: Vec<Point>,
}

/// One point of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    /// Not finite: not known.
    pub(crate) y: f64,
    /// Both ends of an interval around the value, if any.
    pub(crate) spread: Option<(f64, f64)>,
    /// The generator was the limit: drawn hollow.
    pub(crate) limited: bool,
}

impl Point {
    /// A value without a spread.
    pub(crate) fn new(x: f64, y: f64) -> Point {
        Point { x, y, spread: None, limited: false }
    }

    fn is_known(&self) -> bool {
        self.x.is_finite() && self.y.is_finite()
    }

    fn highest(&self) -> f64 {
        self.spread.map_or(self.y, |spread| spread.1.max(self.y))
    }
}

impl Lines {
    /// Whether there is anything to draw.
    pub(crate) fn is_empty(&self) -> bool {
        self.points().next().is_none()
    }

    /// The picture.
    ///
    /// # Errors
    /// It can't be drawn, which would be a bug.
    pub(crate) fn svg(&self) -> Result<String, String> {
        let named = self.series.iter().map(|series| (series.name.as_str(), series.look));
        let legend = Legend::new(named, self.points().any(|point| point.limited));
        picture(&self.title, &legend, HEIGHT, |area| self.plot(area))
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points).filter(|point| point.is_known())
    }

    fn plot(&self, area: &Area<'_>) -> Result<(), Failed> {
        let values: Vec<f64> = self.points().map(|point| point.x).collect();
        let across = self.across.axis(&values, (WIDTH - MARGIN - LEFT - RIGHT) as i32);
        let up = Axis::from_zero(self.points().map(Point::highest).fold(0.0, f64::max));
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_left(MARGIN)
            .margin_right(RIGHT)
            .x_label_area_size(BELOW)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(across, up)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.across_name)
            .y_desc(self.up_name)
            .axis_desc_style(label(LABEL_SIZE, HPos::Center));
        mesh.label_style(("sans-serif", LABEL_SIZE, &INK))
            .bold_line_style(GRID)
            .axis_style(PALE)
            .draw()?;
        let base = area.get_base_pixel();
        let place = |x: f64, y: f64| {
            let (across, down) =
                chart.plotting_area().map_coordinate(&(self.across.position(x), y));
            (across - base.0, down - base.1)
        };
        // Marks after all lines, so that no line crosses one.
        self.series.iter().try_for_each(|series| series.put_lines(area, &place))?;
        self.series.iter().try_for_each(|series| series.put_marks(area, &place))
    }
}

impl Series {
    /// Pieces of the line between the gaps.
    fn pieces(&self) -> impl Iterator<Item = &[Point]> {
        self.points.split(|point| !point.is_known()).filter(|piece| !piece.is_empty())
    }

    fn put_lines(
        &self,
        area: &Area<'_>,
        place: &dyn Fn(f64, f64) -> marks::Place,
    ) -> Result<(), Failed> {
        for piece in self.pieces().filter(|piece| piece.len() > 1) {
            let places: Vec<marks::Place> =
                piece.iter().map(|point| place(point.x, point.y)).collect();
            marks::line(area, &places, self.look)?;
        }
        let spreads = self.pieces().flatten().filter_map(|point| Some((point.x, point.spread?)));
        for (x, (low, high)) in spreads.filter(|(_, (low, high))| low < high) {
            marks::spread(area, place(x, low), place(x, high), self.look.colour)?;
        }
        Ok(())
    }

    /// A point without neighbours has a mark in any case, or it would be invisible.
    fn put_marks(
        &self,
        area: &Area<'_>,
        place: &dyn Fn(f64, f64) -> marks::Place,
    ) -> Result<(), Failed> {
        let few = self.points.len() <= MARKED_MAX;
        for piece in self.pieces().filter(|piece| few || piece.len() == 1) {
            for point in piece {
                marks::mark(area, place(point.x, point.y), self.look, point.limited)?;
            }
        }
        Ok(())
    }
}
