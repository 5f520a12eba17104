//! Draws a chart as SVG, with plotters. Text and axes have the colour of the text around the picture (`currentColor`), so the
//! picture fits a light and a dark page.

use anyhow::{Result, anyhow};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{Chart, Kind};

/// Width of a picture, in pixels of its own scale.
const WIDTH: u32 = 860;
/// Height of a picture without the names of the categories.
const HEIGHT: u32 = 300;
/// Height of a character.
const CHARACTER: i32 = 13;
/// A colour that stands for that of the text around.
const INK: RGBColor = RGBColor(1, 2, 3);
/// `INK` as plotters writes it.
const INK_TEXT: &str = "#010203";

/// Colours of the series. Each can be read on white and on black.
const COLOURS: [RGBColor; 12] = [
    RGBColor(0x2f, 0x7f, 0xd8),
    RGBColor(0xe0, 0x7b, 0x1a),
    RGBColor(0x2e, 0xa0, 0x5a),
    RGBColor(0xd0, 0x45, 0x5b),
    RGBColor(0x8d, 0x6b, 0xd6),
    RGBColor(0x9a, 0x70, 0x4e),
    RGBColor(0xd8, 0x6c, 0xbe),
    RGBColor(0x84, 0x8a, 0x92),
    RGBColor(0xb0, 0xa0, 0x20),
    RGBColor(0x22, 0xa5, 0xb4),
    RGBColor(0x6f, 0x8f, 0x3a),
    RGBColor(0xa8, 0x52, 0x8c),
];

type Plot<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The colour of series number `number`.
fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// The colour of series number `number`, as HTML writes it.
pub fn colour_text(number: usize) -> String {
    let RGBColor(red, green, blue) = colour(number);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Draws a chart that has series. The numbers are in the table beside it, so the picture is one image for those who do not see it.
pub fn draw(chart: &Chart) -> Result<String> {
    let mut picture = String::new();
    paint(chart, &mut picture).map_err(|error| anyhow!("cannot draw {:?}: {error}", chart.title))?;
    let picture = picture.replace(&format!("\"{INK_TEXT}\""), "\"currentColor\"");
    Ok(picture.replacen("<svg ", "<svg role=\"img\" ", 1))
}

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn paint(chart: &Chart, picture: &mut String) -> Outcome {
    // A long name is written on several lines, one word each.
    let words = chart.labels.iter().map(|label| label.split(' ').count()).max().unwrap_or(1);
    let below = (words as i32 + 2) * CHARACTER;
    let root = SVGBackend::with_string(picture, (WIDTH, HEIGHT + below as u32)).into_drawing_area();
    let categories = chart.labels.len() as f64;
    let mut plot = ChartBuilder::on(&root)
        .margin(8)
        .margin_bottom(below)
        .y_label_area_size(70)
        .build_cartesian_2d(-0.5..categories - 0.5, 0.0..highest(chart) * 1.08)?;
    let ink = ("sans-serif", CHARACTER).into_font().color(&INK);
    plot.configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(6)
        .y_label_formatter(&|value| short(*value))
        .label_style(ink.clone())
        .axis_style(INK)
        .bold_line_style(INK.mix(0.2))
        .light_line_style(INK.mix(0.0))
        .draw()?;
    match chart.kind {
        Kind::Stacked => stacked(chart, &mut plot)?,
        Kind::Grouped => grouped(chart, &mut plot)?,
        Kind::Lines => lines(chart, &mut plot)?,
    }
    let centred = ink.pos(Pos::new(HPos::Center, VPos::Top));
    for (number, label) in chart.labels.iter().enumerate() {
        let (x, y) = plot.backend_coord(&(number as f64, 0.0));
        for (line, word) in (0..).zip(label.split(' ')) {
            root.draw_text(word, &centred, (x, y + 6 + line * CHARACTER))?;
        }
    }
    let (middle, y) = plot.backend_coord(&((categories - 1.0) / 2.0, 0.0));
    root.draw_text(chart.across, &centred, (middle, y + 6 + (words as i32) * CHARACTER + 4))?;
    root.present()?;
    Ok(())
}

/// The highest number of a chart, or the highest sum of a category. Never 0.
fn highest(chart: &Chart) -> f64 {
    let of = |label: usize| chart.series.iter().filter_map(move |series| series.values.get(label).copied().flatten());
    let tops = (0..chart.labels.len()).map(|label| match chart.kind {
        Kind::Stacked => of(label).sum(),
        Kind::Grouped | Kind::Lines => of(label).fold(0.0, f64::max),
    });
    let top = tops.fold(0.0, f64::max);
    if top > 0.0 { top } else { 1.0 }
}

/// A number of the axis, short.
fn short(value: f64) -> String {
    match value {
        v if v >= 10_000_000.0 => format!("{:.0} M", v / 1e6),
        v if v >= 10_000.0 => format!("{:.0} k", v / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

fn stacked(chart: &Chart, plot: &mut Plot<'_>) -> Outcome {
    let mut tops = vec![0.0; chart.labels.len()];
    for (number, series) in chart.series.iter().enumerate() {
        let fill = colour(number).filled();
        for ((at, top), value) in tops.iter_mut().enumerate().zip(&series.values) {
            let Some(value) = value else { continue };
            let bar = [(at as f64 - 0.35, *top), (at as f64 + 0.35, *top + value)];
            *top += value;
            plot.draw_series([Rectangle::new(bar, fill)])?;
        }
    }
    Ok(())
}

fn grouped(chart: &Chart, plot: &mut Plot<'_>) -> Outcome {
    let width = 0.8 / chart.series.len() as f64;
    for (number, series) in chart.series.iter().enumerate() {
        let fill = colour(number).filled();
        let left = number as f64 * width - 0.4;
        for (at, value) in series.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let from = at as f64 + left;
            plot.draw_series([Rectangle::new([(from, 0.0), (from + width * 0.9, *value)], fill)])?;
        }
    }
    Ok(())
}

fn lines(chart: &Chart, plot: &mut Plot<'_>) -> Outcome {
    for (number, series) in chart.series.iter().enumerate() {
        let points: Vec<(f64, f64)> =
            series.values.iter().enumerate().filter_map(|(at, value)| Some((at as f64, (*value)?))).collect();
        plot.draw_series([PathElement::new(points.clone(), colour(number).stroke_width(2))])?;
        plot.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour(number).filled())))?;
    }
    Ok(())
}
