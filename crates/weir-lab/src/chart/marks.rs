//! The elements of charts, in pixels of their area: lines, marks, and the bars that show a spread.
//!
//! Called by `lines.rs`, `bars.rs` and `legend.rs`.

use plotters::element::DashedPathElement;
use plotters::prelude::*;

use super::{Area, Failed, Look};

/// A place in an area, pixels from its upper left corner.
pub(super) type Place = (i32, i32);

/// Half the width of the end of a spread, pixels.
const CAP: i32 = 3;

/// A line through the places.
pub(super) fn line(area: &Area<'_>, places: &[Place], look: Look) -> Result<(), Failed> {
    let style = look.colour.stroke_width(2);
    match look.dash {
        None => area.draw(&PathElement::new(places, style)),
        Some((dash, gap)) => {
            area.draw(&DashedPathElement::new(places.iter().copied(), dash, gap, style))
        }
    }
}

/// The mark of a look; a hollow one is white inside.
pub(super) fn mark(area: &Area<'_>, (x, y): Place, look: Look, hollow: bool) -> Result<(), Failed> {
    let mut corners: Vec<Place> =
        look.mark.iter().map(|corner| (x + corner.0, y + corner.1)).collect();
    area.draw(&Polygon::new(
        corners.as_slice(),
        if hollow { WHITE.filled() } else { look.colour.filled() },
    ))?;
    // The second corner comes again as well, so that the outline is closed with a joint.
    corners.extend_from_within(..2);
    area.draw(&PathElement::new(corners, look.colour.stroke_width(if hollow { 2 } else { 1 })))
}

/// A thin line between two places, with a cap at each: upright or level.
pub(super) fn spread(
    area: &Area<'_>,
    from: Place,
    to: Place,
    colour: RGBColor,
) -> Result<(), Failed> {
    let style = colour.mix(0.7).stroke_width(1);
    let cap = if from.0 == to.0 { (CAP, 0) } else { (0, CAP) };
    area.draw(&PathElement::new([from, to], style))?;
    [from, to].into_iter().try_for_each(|(x, y)| {
        area.draw(&PathElement::new([(x - cap.0, y - cap.1), (x + cap.0, y + cap.1)], style))
    })
}
