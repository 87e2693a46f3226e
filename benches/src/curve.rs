//! Curves as SVG: both axes logarithmic, no fonts of the system needed.

use plotters::prelude::*;

use crate::Failure;

/// A picture.
#[derive(Debug)]
pub(crate) struct Curve {
    /// End of the file's name.
    pub(crate) file: &'static str,
    pub(crate) title: String,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) series: Vec<Series>,
}

/// One line of it.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(110, 110, 110),
    RGBColor(0, 0, 0),
];

/// The picture as SVG.
pub(crate) fn draw(curve: &Curve) -> Result<String, Failure> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (820, 480)).into_drawing_area();
        root.fill(&WHITE)?;
        let points = || curve.series.iter().flat_map(|series| &series.points);
        let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
        let xs = least(&mut points().map(|point| point.0))..most(&mut points().map(|point| point.0)) * 1.05;
        let lowest = least(&mut points().map(|point| point.1)).max(1e-3);
        let ys = lowest / 2.0..most(&mut points().map(|point| point.1)) * 2.0;
        let mut chart = ChartBuilder::on(&root)
            .caption(&curve.title, ("sans-serif", 20))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(xs.log_scale(), ys.log_scale())?;
        chart
            .configure_mesh()
            .x_desc(curve.x)
            .y_desc(curve.y)
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&|y| format!("{y}"))
            .light_line_style(RGBColor(240, 240, 240))
            .draw()?;
        for (series, colour) in curve.series.iter().zip(COLOURS.into_iter().cycle()) {
            chart
                .draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(2)).point_size(3))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(200, 200, 200))
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}
