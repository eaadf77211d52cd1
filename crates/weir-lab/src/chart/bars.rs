//! A chart of bars in groups: a group for each situation, in it a bar for each contender, with name
//! and value beside it.
//!
//! Called by reports. Bars are horizontal, so that names of any length can be read. An unknown
//! value is a gap, never a bar of 0.

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::axis::{Axis, figure};
use super::legend::Legend;
use super::{
    Area, Failed, GRID, INK, LABEL_SIZE, Look, PALE, WIDTH, label, marks, picture, shortened,
    width_px,
};

/// Heights of the name of a group, of a bar with its space, of the bar alone, of the axis, and
/// above the first group; pixels.
const NAME_HEIGHT: i32 = 24;
const ROW_HEIGHT: i32 = 19;
const BAR_HEIGHT: i32 = 12;
const AXIS_HEIGHT: i32 = 44;
const TOP: i32 = 6;
/// Where names begin, space between a name and its bar, and free space at the right; pixels.
const LEFT: i32 = 12;
const GAP: i32 = 8;
const RIGHT: i32 = 16;
/// The names of contenders are not wider than this.
const NAME_PX_MAX: i32 = 180;
/// How much longer than the longest bar the axis is: the value is written after the bar.
const ROOM: f64 = 1.10;

/// A chart of bars.
pub(crate) struct Bars {
    /// What it shows.
    pub(crate) title: String,
    /// What the values are, with their unit.
    pub(crate) across_name: &'static str,
    pub(crate) groups: Vec<Group>,
    /// A value to compare with, drawn as a dashed line: 1 for ratios.
    pub(crate) reference: Option<f64>,
}

/// Bars that belong together.
pub(crate) struct Group {
    /// Empty when there is only one group and the title is sufficient.
    pub(crate) name: String,
    pub(crate) bars: Vec<Bar>,
}

/// One bar.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) look: Look,
    /// Not finite: not known.
    pub(crate) value: f64,
    /// Lowest and highest value over the rounds, where there is more than one.
    pub(crate) spread: Option<(f64, f64)>,
    /// The generator was the limit: drawn hollow.
    pub(crate) limited: bool,
}

impl Bar {
    fn highest(&self) -> f64 {
        self.spread.map_or(self.value, |spread| spread.1.max(self.value))
    }
}

impl Group {
    fn name_height(&self) -> i32 {
        if self.name.is_empty() { 0 } else { NAME_HEIGHT }
    }

    fn height(&self) -> i32 {
        self.name_height() + self.bars.len() as i32 * ROW_HEIGHT + GAP
    }
}

/// The scale of the values of a chart.
struct Scale {
    axis: Axis,
    /// Left and right end, pixels.
    ends: (i32, i32),
}

impl Scale {
    fn at(&self, value: f64) -> i32 {
        self.axis.map(&value, self.ends)
    }
}

impl Bars {
    /// Whether there is anything to draw.
    pub(crate) fn is_empty(&self) -> bool {
        !self.bars().any(|bar| bar.value.is_finite())
    }

    /// The picture.
    ///
    /// # Errors
    /// It can't be drawn, which would be a bug.
    pub(crate) fn svg(&self) -> Result<String, String> {
        let legend = Legend::new(std::iter::empty(), self.bars().any(|bar| bar.limited));
        let height = TOP + self.groups.iter().map(Group::height).sum::<i32>() + AXIS_HEIGHT;
        picture(&self.title, &legend, height as u32, |area| self.plot(area, height - AXIS_HEIGHT))
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.groups.iter().flat_map(|group| &group.bars)
    }

    fn plot(&self, area: &Area<'_>, bottom: i32) -> Result<(), Failed> {
        let highest =
            self.bars().map(Bar::highest).filter(|value| value.is_finite()).fold(0.0, f64::max);
        let highest = self.reference.map_or(highest, |reference| reference.max(highest));
        let names =
            self.bars().map(|bar| width_px(&shortened(&bar.name, NAME_PX_MAX))).max().unwrap_or(0);
        let ends = (LEFT + names + GAP, WIDTH as i32 - RIGHT);
        let scale = Scale { axis: Axis::from_zero(highest).with_room(ROOM), ends };
        let mut y = TOP;
        for group in &self.groups {
            self.put_group(area, &scale, group, y)?;
            y += group.height();
        }
        self.put_axis(area, &scale, bottom)
    }

    fn put_group(
        &self,
        area: &Area<'_>,
        scale: &Scale,
        group: &Group,
        top: i32,
    ) -> Result<(), Failed> {
        if !group.name.is_empty() {
            let name = shortened(&group.name, WIDTH as i32 - LEFT - RIGHT);
            area.draw_text(&name, &heading(), (LEFT, top + NAME_HEIGHT / 2))?;
        }
        let first = top + group.name_height();
        let bottom = first + group.bars.len() as i32 * ROW_HEIGHT;
        put_grid(area, scale, first, bottom)?;
        let rows = (first + ROW_HEIGHT / 2..).step_by(ROW_HEIGHT as usize);
        group.bars.iter().zip(rows).try_for_each(|(bar, y)| bar.put(area, scale, y))?;
        self.put_reference(area, scale, first, bottom)
    }

    /// Draws a line over the bars of a group.
    fn put_reference(
        &self,
        area: &Area<'_>,
        scale: &Scale,
        top: i32,
        bottom: i32,
    ) -> Result<(), Failed> {
        let Some(reference) = self.reference.map(|value| scale.at(value)) else { return Ok(()) };
        let line = [(reference, top), (reference, bottom)];
        area.draw(&DashedPathElement::new(line, 5, 4, INK.stroke_width(1)))
    }

    fn put_axis(&self, area: &Area<'_>, scale: &Scale, bottom: i32) -> Result<(), Failed> {
        let (left, right) = scale.ends;
        area.draw(&PathElement::new([(left, bottom), (right, bottom)], PALE))?;
        for (value, name) in &scale.axis.ticks {
            area.draw_text(
                name,
                &label(LABEL_SIZE, HPos::Center),
                (scale.at(*value), bottom + 12),
            )?;
        }
        let middle = i32::midpoint(left, right);
        area.draw_text(self.across_name, &label(LABEL_SIZE, HPos::Center), (middle, bottom + 32))
    }
}

impl Bar {
    fn put(&self, area: &Area<'_>, scale: &Scale, y: i32) -> Result<(), Failed> {
        let name = shortened(&self.name, NAME_PX_MAX);
        area.draw_text(&name, &label(LABEL_SIZE, HPos::Right), (scale.ends.0 - GAP, y))?;
        let mut end = scale.ends.0;
        if self.value.is_finite() {
            end = scale.at(self.value);
            self.put_bar(area, [(scale.ends.0, y - BAR_HEIGHT / 2), (end, y + BAR_HEIGHT / 2)])?;
        }
        if let Some((low, high)) =
            self.spread.filter(|(low, high)| self.value.is_finite() && low < high)
        {
            // Dark, because it is drawn on the bar itself.
            marks::spread(area, (scale.at(low), y), (scale.at(high), y), INK)?;
            end = end.max(scale.at(high));
        }
        area.draw_text(&figure(self.value), &label(LABEL_SIZE, HPos::Left), (end + GAP, y))
    }

    fn put_bar(&self, area: &Area<'_>, corners: [marks::Place; 2]) -> Result<(), Failed> {
        if !self.limited {
            return area.draw(&Rectangle::new(corners, self.look.colour.filled()));
        }
        area.draw(&Rectangle::new(corners, WHITE.filled()))?;
        let [(left, top), (right, bottom)] = corners;
        let outline = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)];
        area.draw(&PathElement::new(outline, self.look.colour.stroke_width(2)))
    }
}

/// Lines behind the bars of a group, between two heights.
fn put_grid(area: &Area<'_>, scale: &Scale, top: i32, bottom: i32) -> Result<(), Failed> {
    scale.axis.ticks.iter().try_for_each(|(value, _)| {
        let x = scale.at(*value);
        area.draw(&PathElement::new(
            [(x, top), (x, bottom)],
            if *value == 0.0 { PALE } else { GRID },
        ))
    })
}

/// Style of a group's name.
fn heading() -> TextStyle<'static> {
    let mut style = label(LABEL_SIZE + 1.0, HPos::Left);
    style.font = style.font.style(FontStyle::Bold);
    style
}
