//! How metrics are written: OpenMetrics 1.0, or Prometheus' text format 0.0.4. Which one, the client's header `Accept` says.

use std::collections::BTreeMap;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

/// The content type of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that a client wants most, by its header `Accept` (RFC 9110, 12.5.1). It is the text format if that is wanted as
    /// much, or if nothing is said of OpenMetrics 1.0.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let (mut open, mut plain) = (0.0, 0.0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut weight, mut version) = (1.0_f32, "1.0.0");
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => weight = value.trim().parse().unwrap_or(0.0),
                    "version" => version = value.trim().trim_matches('"'),
                    _ => {}
                }
            }
            match kind.as_str() {
                "application/openmetrics-text" if version == "1.0.0" => open = weight.max(open),
                "text/plain" | "text/*" | "*/*" => plain = weight.max(plain),
                _ => {}
            }
        }
        if open > plain { Self::OpenMetrics } else { Self::Text }
    }

    /// Its content type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => OPEN_METRICS,
        }
    }
}

/// A value.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// How often something happened, or bytes.
    Count(u64),
    /// A time.
    Seconds(f64),
    /// One quantity by another of its kind. It goes up and down.
    Ratio(f64),
}

/// Series of one name.
#[derive(Debug)]
struct Family {
    help: &'static str,
    /// Labels with their values, and the series' value.
    series: Vec<(Vec<(&'static str, String)>, Value)>,
}

/// Metric families in the making, by name.
#[derive(Debug, Default)]
pub struct Families(BTreeMap<&'static str, Family>);

impl Families {
    /// Adds a series. The ends of `name` say its unit and whether it only grows. All series of a name have the same labels and kind of
    /// value.
    pub fn add(&mut self, name: &'static str, help: &'static str, labels: &[(&'static str, &str)], value: Value) {
        let family = self.0.entry(name).or_insert_with(|| Family { help, series: Vec::new() });
        let labels = labels.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        family.series.push((labels, value));
    }

    /// Writes all of them.
    #[must_use]
    pub fn encoded(self, format: Format) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = match format {
            Format::Text => prometheus_text::encode(&mut out, &registry),
            Format::OpenMetrics => text::encode(&mut out, &registry),
        };
        out
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        for (&name, family) in &self.0 {
            // The name without its unit and `_total`: the encoder adds them, and where they belong is different in the formats.
            let counter = name.strip_suffix("_total");
            let name = counter.unwrap_or(name);
            let (name, unit) = match (name.strip_suffix("_seconds"), name.strip_suffix("_bytes")) {
                (Some(name), _) => (name, Some(Unit::Seconds)),
                (_, Some(name)) => (name, Some(Unit::Bytes)),
                _ => (name, None),
            };
            let kind = if counter.is_some() { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(name, family.help, unit.as_ref(), kind)?;
            for (labels, value) in &family.series {
                let series = metric.encode_family(labels)?;
                match (kind, *value) {
                    (MetricType::Counter, Value::Count(count)) => ConstCounter::new(count).encode(series)?,
                    (MetricType::Counter, Value::Seconds(time) | Value::Ratio(time)) => {
                        ConstCounter::new(time).encode(series)?
                    }
                    (_, Value::Count(count)) => ConstGauge::new(count).encode(series)?,
                    (_, Value::Seconds(time) | Value::Ratio(time)) => ConstGauge::new(time).encode(series)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_chooses_the_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("Application/OpenMetrics-Text ; Version=\"1.0.0\" ; Q=0.1", Format::OpenMetrics),
            ("text/plain;q=0.2, application/openmetrics-text; version=1.0.0; q=0.3", Format::OpenMetrics),
            ("text/plain, application/openmetrics-text; version=1.0.0", Format::Text),
            ("application/openmetrics-text; version=0.0.1", Format::Text),
            ("application/openmetrics-text; q=0", Format::Text),
            ("application/openmetrics-text; q=x", Format::Text),
            ("text/plain; version=0.0.4", Format::Text),
            ("*/*", Format::Text),
            ("", Format::Text),
            (";;,=,\u{fffd}q=1", Format::Text),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }

    fn some() -> Families {
        let mut families = Families::default();
        families.add("sidecore_x_seconds_total", "Time.", &[("mode", "busy")], Value::Seconds(0.25));
        families.add("sidecore_x_seconds_total", "Time.", &[("mode", "a\"\\\nb")], Value::Seconds(2.0));
        families.add("sidecore_y_total", "Times.", &[], Value::Count(u64::MAX));
        families.add("sidecore_z_bytes", "Memory.", &[("guest", "a")], Value::Count(5));
        families.add("sidecore_running", "1 or 0.", &[], Value::Count(1));
        families
    }

    #[test]
    fn open_metrics_has_units_a_total_at_the_series_only_and_an_end() {
        let expected = "# HELP sidecore_running 1 or 0.\n\
                        # TYPE sidecore_running gauge\n\
                        sidecore_running 1\n\
                        # HELP sidecore_x_seconds Time.\n\
                        # TYPE sidecore_x_seconds counter\n\
                        # UNIT sidecore_x_seconds seconds\n\
                        sidecore_x_seconds_total{mode=\"busy\"} 0.25\n\
                        sidecore_x_seconds_total{mode=\"a\\\"\\\\\\nb\"} 2.0\n\
                        # HELP sidecore_y Times.\n\
                        # TYPE sidecore_y counter\n\
                        sidecore_y_total 18446744073709551615\n\
                        # HELP sidecore_z_bytes Memory.\n\
                        # TYPE sidecore_z_bytes gauge\n\
                        # UNIT sidecore_z_bytes bytes\n\
                        sidecore_z_bytes{guest=\"a\"} 5\n\
                        # EOF\n";
        assert_eq!(some().encoded(Format::OpenMetrics), expected);
    }

    #[test]
    fn the_text_format_has_the_whole_name_everywhere() {
        let expected = "# HELP sidecore_running 1 or 0.\n\
                        # TYPE sidecore_running gauge\n\
                        sidecore_running 1\n\
                        # HELP sidecore_x_seconds_total Time.\n\
                        # TYPE sidecore_x_seconds_total counter\n\
                        sidecore_x_seconds_total{mode=\"busy\"} 0.25\n\
                        sidecore_x_seconds_total{mode=\"a\\\"\\\\\\nb\"} 2.0\n\
                        # HELP sidecore_y_total Times.\n\
                        # TYPE sidecore_y_total counter\n\
                        sidecore_y_total 18446744073709551615\n\
                        # HELP sidecore_z_bytes Memory.\n\
                        # TYPE sidecore_z_bytes gauge\n\
                        sidecore_z_bytes{guest=\"a\"} 5\n";
        assert_eq!(some().encoded(Format::Text), expected);
    }
}
