//! Proves: measured values are drawn, others are not, and no name can break out of the picture.
//! How: charts of a few values; the elements of the SVG are counted by their colours.

use super::*;

fn series(name: &str, at: &Palette, points: Vec<Point>) -> Series {
    Series { name: name.to_owned(), look: at.look(name), points }
}

fn lines(series: Vec<Series>) -> Lines {
    Lines {
        title: "Rate".to_owned(),
        across: Across::Logarithmic(Unit::Count),
        across_name: "connections",
        up_name: "answers/s",
        series,
    }
}

fn bar(name: &str, at: &Palette, value: f64) -> Bar {
    Bar { name: name.to_owned(), look: at.look(name), value, spread: None, limited: false }
}

fn bars(bars: Vec<Bar>) -> Bars {
    let groups = vec![Group { name: "64 connections".to_owned(), bars }];
    Bars { title: "Rate".to_owned(), across_name: "answers/s", groups, reference: None }
}

/// Elements of a kind in the colour of a name.
fn count(svg: &str, element: &str, look: Look) -> usize {
    let RGBColor(red, green, blue) = look.colour;
    let colour = format!("#{red:02X}{green:02X}{blue:02X}");
    svg.lines()
        .filter(|line| line.starts_with(&format!("<{element} ")) && line.contains(&colour))
        .count()
}

#[test]
fn names_are_escaped() {
    let evil = "</svg><script>'\"&";
    let palette = Palette::new([evil]);
    let mut chart = lines(vec![series(evil, &palette, vec![Point::new(1.0, 1.0)])]);
    chart.title = evil.to_owned();
    let mut other = bars(vec![bar(evil, &palette, 1.0)]);
    other.title = evil.to_owned();
    other.groups[0].name = evil.to_owned();
    for (svg, times) in [(chart.svg().unwrap(), 3), (other.svg().unwrap(), 4)] {
        assert_eq!(svg.matches("&lt;/svg&gt;&lt;script&gt;").count(), times, "{svg}");
        assert!(!svg.contains("<script"), "{svg}");
        assert_eq!(svg.matches("</svg>").count(), 1);
    }
}

#[test]
fn a_single_point_is_drawn() {
    let palette = Palette::new(["weir"]);
    let one = lines(vec![series("weir", &palette, vec![Point::new(64.0, 1000.0)])]).svg().unwrap();
    let none = lines(vec![series("weir", &palette, vec![])]).svg().unwrap();
    let marks = |svg: &str| count(svg, "polygon", palette.look("weir"));
    assert_eq!((marks(&one), marks(&none)), (2, 1), "one in the legend, one in the plot");
    assert!(
        lines(vec![]).is_empty() && lines(vec![]).svg().is_ok(),
        "a chart of nothing is a picture, too"
    );
}

#[test]
fn what_is_not_known_breaks_the_line() {
    let palette = Palette::new(["weir"]);
    let point = |x: f64, y: f64| Point::new(x, y);
    let whole =
        vec![point(1.0, 1.0), point(2.0, 2.0), point(4.0, 3.0), point(8.0, 4.0), point(16.0, 5.0)];
    let mut gap = whole.clone();
    gap[2].y = f64::NAN;
    let strokes = |points| {
        let svg = lines(vec![series("weir", &palette, points)]).svg().unwrap();
        assert!(!svg.contains("NaN"), "{svg}");
        svg.lines()
            .filter(|line| line.contains("stroke-width=\"2\"") && line.starts_with("<polyline"))
            .count()
    };
    assert_eq!((strokes(whole), strokes(gap)), (2, 3), "with the one in the legend");
}

#[test]
fn a_lonely_point_of_a_long_series_has_a_mark() {
    let palette = Palette::new(["weir"]);
    let mut points: Vec<Point> = (0..100).map(|x| Point::new(f64::from(x), 1.0)).collect();
    points[49].y = f64::NAN;
    points[51].y = f64::NAN;
    let mut chart = lines(vec![series("weir", &palette, points)]);
    chart.across = Across::Linear;
    assert_eq!(count(&chart.svg().unwrap(), "polygon", palette.look("weir")), 2);
}

#[test]
fn a_spread_is_drawn_and_never_cut_off() {
    let palette = Palette::new(["weir"]);
    let spread = Point { spread: Some((5.0, 900.0)), ..Point::new(64.0, 10.0) };
    let svg = lines(vec![series("weir", &palette, vec![spread])]).svg().unwrap();
    assert!(svg.contains("\n800\n"), "the axis reaches to the highest round: {svg}");
    assert_eq!(svg.lines().filter(|line| line.contains("opacity=\"0.7\"")).count(), 3);
}

#[test]
fn a_bar_that_is_not_known_is_a_gap_with_its_name() {
    let palette = Palette::new(["nginx", "weir"]);
    let chart = bars(vec![bar("nginx", &palette, 1000.0), bar("weir", &palette, f64::NAN)]);
    let svg = chart.svg().unwrap();
    let drawn = |name| count(&svg, "rect", palette.look(name));
    assert_eq!((drawn("nginx"), drawn("weir")), (1, 0), "{svg}");
    assert!(svg.contains("\nweir\n") && svg.contains("\n-\n") && !svg.contains("NaN"), "{svg}");
    assert!(!chart.is_empty() && bars(vec![bar("weir", &palette, f64::NAN)]).is_empty());
}

#[test]
fn a_limited_figure_is_hollow_and_says_why() {
    let palette = Palette::new(["weir"]);
    let limited = Point { limited: true, ..Point::new(64.0, 10.0) };
    let svg = lines(vec![series("weir", &palette, vec![limited])]).svg().unwrap();
    assert_eq!(count(&svg, "polygon", palette.look("weir")), 1, "only the legend's is filled");
    assert!(svg.contains(LIMITED));
    let svg = bars(vec![Bar { limited: true, ..bar("weir", &palette, 10.0) }]).svg().unwrap();
    assert_eq!(count(&svg, "rect", palette.look("weir")), 0);
    assert!(svg.contains(LIMITED));
}

#[test]
fn long_names_are_shortened_and_many_take_more_rows() {
    let names: Vec<String> = (0..30).map(|at| format!("{at} {}", "long ".repeat(at * 4))).collect();
    let palette = Palette::new(names.iter().map(String::as_str));
    let few = Legend::new(names[..2].iter().map(|name| (name.as_str(), palette.look(name))), false);
    let many = Legend::new(names.iter().map(|name| (name.as_str(), palette.look(name))), true);
    assert!(few.height() == 20 && many.height() > 200, "{} {}", few.height(), many.height());
    assert_eq!(shortened("short", 100), "short");
    let cut = shortened(&"x".repeat(100), 100);
    assert!(cut.ends_with('…') && width_px(&cut) <= 100, "{cut}");
}
