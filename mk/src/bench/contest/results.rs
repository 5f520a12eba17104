//! Reads the results of `switch-bench`, and computes the ratios of the rounds.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::table::{Aim, Table};

/// Limit of near processors, in nanoseconds. If they share a cache, a cache line goes from one to the other and back in
/// less.
const NEAR: f64 = 150.0;

/// One switch of a result.
pub fn contestant<'a>(result: &'a Value, name: &str) -> Option<&'a Value> {
    result["contestants"].as_array()?.iter().find(|c| c["name"] == name)
}

pub fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("no number {name} in {value}"))
}

/// A value of each round.
pub fn rounds<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = f64> + 'a {
    value[name].as_array().into_iter().flatten().filter_map(Value::as_f64)
}

/// The median. Without values: NaN.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Notes the ratios for rounds with processors near each other, and for the other rounds. A kind without rounds gets no
/// note.
pub fn by_distance(table: &mut Table, what: &str, result: &Value, ours: &Value) {
    let near: Vec<bool> = rounds(result, "distances").map(|ns| ns < NEAR).collect();
    for (kind, wanted) in [("near", true), ("far", false)] {
        let count = near.iter().filter(|&&near| near == wanted).count();
        if count == 0 {
            continue;
        }
        let others = result["contestants"].as_array().into_iter().flatten().filter(|one| one["name"] != ours["name"]);
        let ratios = others.map(|one| {
            let these =
                ratios(ours, one, "rounds").zip(&near).filter(|&(_, &near)| near == wanted).map(|(ratio, _)| ratio);
            format!("{} {:.2}", one["name"].as_str().unwrap_or("?"), median(these))
        });
        let ratios: Vec<String> = ratios.collect();
        table.note(&format!("{what} {kind}, {count} rounds: ours against {}", ratios.join(", ")));
    }
}

/// The ratio of two contestants' values in each round.
pub fn ratios<'a>(ours: &'a Value, theirs: &'a Value, name: &str) -> impl Iterator<Item = f64> + 'a {
    rounds(ours, name).zip(rounds(theirs, name)).map(|(ours, theirs)| ours / theirs)
}

/// The median of the rounds' ratios.
pub fn ratio(ours: &Value, theirs: &Value) -> Option<f64> {
    let ratio = median(ratios(ours, theirs, "rounds"));
    (!ratio.is_nan()).then_some(ratio)
}

/// The features that were negotiated with a contestant.
pub fn features(one: &Value) -> Vec<&str> {
    one["features"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Adds the ratio of ours to another contestant to the table, next to its aim.
pub fn against(table: &mut Table, result: &Value, ours: &Value, name: &str, (what, aim): (&str, f64)) {
    match contestant(result, name).and_then(|theirs| ratio(ours, theirs)) {
        Some(ratio) => table.figure(what, ratio, "", Aim::AtLeast(aim)),
        None => table.missing(what, "it took no part"),
    }
}

/// Notes the distance of the processors.
pub fn apart(table: &mut Table, what: &str, result: &Value) {
    let each: Vec<String> = rounds(result, "distances").map(|ns| format!("{ns:.0}")).collect();
    let left_out = result["left_out"].as_u64().unwrap_or(0);
    table.note(&format!("{what}: a cache line there and back took {} ns; {left_out} rounds left out", each.join(", ")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_ratio_is_the_median_of_the_rounds() {
        let (a, b) = (json!({"rounds": [2.0, 9.0, 4.0]}), json!({"rounds": [1.0, 1.0, 4.0]}));
        assert_eq!(ratio(&a, &b), Some(2.0));
        assert_eq!(ratio(&a, &json!({})), None);
    }

    #[test]
    fn rounds_near_and_far_are_told_apart() {
        let (ours, other) = (json!({"name": "ours", "rounds": [6.0, 1.0]}), json!({"name": "x", "rounds": [2.0, 4.0]}));
        let mut table = Table::default();
        by_distance(&mut table, "60 B", &json!({"distances": [70.0, 400.0], "contestants": [ours, other]}), &ours);
        let shown = table.to_string();
        assert!(
            shown.contains("near, 1 rounds: ours against x 3.00")
                && shown.contains("far, 1 rounds: ours against x 0.25")
        );
    }
}
