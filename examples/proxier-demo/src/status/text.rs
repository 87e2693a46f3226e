//! Prometheus' text format 0.0.4.

use std::fmt::{Arguments, Display, Write};

use crate::histogram::Histogram;

pub(super) type Labels = Vec<(&'static str, String)>;

pub(super) struct Page {
    /// Prefix of the names of added metrics.
    pub(super) prefix: &'static str,
    pub(super) text: String,
}

impl Page {
    pub(super) fn new(prefix: &'static str) -> Self {
        Page { prefix, text: String::with_capacity(16 * 1024) }
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help, [(Labels::new(), value)]);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help, [(Labels::new(), value)]);
    }

    /// Adds a metric with a value for each of these label sets; nothing, if there are none.
    pub(super) fn family<T: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, T)>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_some() {
            self.head(name, kind, help);
        }
        for (labels, value) in values {
            self.sample(name, &labels, &value);
        }
    }

    pub(super) fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, &'a Histogram)>,
    ) {
        let (buckets, sum, count) = (format!("{name}_bucket"), format!("{name}_sum"), format!("{name}_count"));
        let mut values = values.into_iter().peekable();
        if values.peek().is_some() {
            self.head(name, "histogram", help);
        }
        for (labels, histogram) in values {
            let all = histogram.count();
            let bounds = histogram.cumulated().map(|(bound, total)| (bound.to_string(), total));
            for (bound, total) in bounds.chain([("+Inf".to_owned(), all)]) {
                let mut labels = labels.clone();
                labels.push(("le", bound));
                self.sample(&buckets, &labels, &total);
            }
            self.sample(&sum, &labels, &histogram.sum);
            self.sample(&count, &labels, &all);
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        add(&mut self.text, format_args!("# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &Labels, value: &dyn Display) {
        add(&mut self.text, format_args!("{}{name}", self.prefix));
        let mut before = '{';
        for (label, text) in labels {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            add(&mut self.text, format_args!("{before}{label}=\"{text}\""));
            before = ',';
        }
        let end = if labels.is_empty() { "" } else { "}" };
        add(&mut self.text, format_args!("{end} {value}\n"));
    }
}

fn add(page: &mut String, text: Arguments<'_>) {
    let _cannot_fail = page.write_fmt(text);
}
