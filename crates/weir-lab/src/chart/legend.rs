//! The legend of a chart: above the plot, in as many rows as it needs.
//!
//! Called by `lines.rs` and `bars.rs`. Bound: a name is shortened to [`NAME_PX_MAX`].

use plotters::style::text_anchor::HPos;

use super::{
    Area, Failed, INK, LABEL_SIZE, LIMITED, Look, WIDTH, label, marks, shortened, width_px,
};

/// Height of a row, pixels.
const ROW_HEIGHT: i32 = 20;
/// Length of the piece of line before a name, pixels.
const SAMPLE: i32 = 30;
/// Where names begin, and where they end at the latest.
const LEFT: i32 = 12;
const RIGHT: i32 = WIDTH as i32 - 12;
/// Space between entries.
const GAP: i32 = 18;
/// A name is not wider than this.
const NAME_PX_MAX: i32 = 380;

/// Entries with their places.
pub(super) struct Legend {
    entries: Vec<Entry>,
}

struct Entry {
    /// Left end, and middle of the row below the legend's top.
    at: (i32, i32),
    name: String,
    /// None is the explanation of hollow marks.
    look: Option<Look>,
}

impl Legend {
    /// Places the names, and the meaning of hollow marks if there are any.
    pub(super) fn new<'a>(
        series: impl Iterator<Item = (&'a str, Look)>,
        any_limited: bool,
    ) -> Legend {
        let named = series.map(|(name, look)| (name, Some(look)));
        let all = named.chain(any_limited.then_some((LIMITED, None)));
        let mut entries = Vec::new();
        let (mut x, mut y) = (LEFT, ROW_HEIGHT / 2);
        for (name, look) in all {
            let name = shortened(name, NAME_PX_MAX);
            let width = SAMPLE + 6 + width_px(&name);
            if x > LEFT && x + width > RIGHT {
                (x, y) = (LEFT, y + ROW_HEIGHT);
            }
            entries.push(Entry { at: (x, y), name, look });
            x += width + GAP;
        }
        Legend { entries }
    }

    /// Height of all rows, pixels.
    pub(super) fn height(&self) -> u32 {
        self.entries.last().map_or(0, |entry| entry.at.1 + ROW_HEIGHT / 2) as u32
    }

    /// Draws it this far below the top.
    pub(super) fn draw(&self, area: &Area<'_>, top: i32) -> Result<(), Failed> {
        self.entries.iter().try_for_each(|entry| entry.draw(area, top))
    }
}

impl Entry {
    fn draw(&self, area: &Area<'_>, top: i32) -> Result<(), Failed> {
        let (x, y) = (self.at.0, self.at.1 + top);
        match self.look {
            Some(look) => {
                marks::line(area, &[(x, y), (x + SAMPLE, y)], look)?;
                marks::mark(area, (x + SAMPLE / 2, y), look, false)?;
            }
            None => marks::mark(area, (x + SAMPLE / 2, y), Look::of_any(INK), true)?,
        }
        area.draw_text(&self.name, &label(LABEL_SIZE, HPos::Left), (x + SAMPLE + 6, y))
    }
}
