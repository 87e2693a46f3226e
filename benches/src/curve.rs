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
        let highest = most(&mut points().map(|point| point.1));
        // Room above the curves for the legend: a line for each, of the picture's 380 pixels or so.
        let lines = curve.series.iter().fold(1.5, |lines, _series| lines + 1.0);
        let legend: f64 = (lines * 19.0 / 380.0_f64).min(0.5);
        let bottom = lowest / 2.0;
        let ys = bottom..highest * (highest * 1.5 / bottom).powf(legend / (1.0 - legend));
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
            .label_style(("sans-serif", 14))
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&|y| format!("{y}"))
            .light_line_style(RGBColor(240, 240, 240))
            .draw()?;
        for (series, colour) in curve.series.iter().zip(COLOURS.into_iter().cycle()) {
            chart
                .draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(2)).point_size(4))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .label_font(("sans-serif", 14))
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(200, 200, 200))
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::{Curve, Series, draw};

    #[test]
    fn every_curve_is_drawn_and_named() {
        let series = |name: &str, factor: f64| Series {
            name: name.to_owned(),
            points: [10.0, 100.0, 1_000.0, 5_000.0, 10_000.0].map(|x| (x, 1.0 + x * factor)).to_vec(),
        };
        let series = vec![series("flat", 0.0), series("a little", 0.000_1), series("growing", 0.5)];
        let curve = Curve { file: "x", title: "Title".into(), x: "Services", y: "ms", series };
        let svg = draw(&curve).unwrap();
        for text in ["Title", "Services", "flat", "a little", "growing"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.matches("<polyline").count() >= 3);
    }
}
