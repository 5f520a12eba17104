//! The shares of several guests in our engine's time, by the engine's own count (`engine_cycles` of its ports).

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::results::median;
use super::table::{Aim, Table};

/// Cycles that the engine has spent on each port, from its counters.
pub fn cycles(counters: &Value, ports: usize) -> Result<Vec<f64>> {
    let all = counters["ports"].as_array().context("sidecore-vhost has named no ports")?;
    let cycles: Vec<f64> = all.iter().filter_map(|port| port["engine_cycles"].as_f64()).collect();
    ensure!(cycles.len() == ports && cycles.iter().all(|&cycles| cycles > 0.0), "a port was not served: {cycles:?}");
    Ok(cycles)
}

/// Jain's fairness index. It is 1 if all shares are equal.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// The largest relative difference of a share from the share that its weight gives.
fn off(cycles: &[f64], weights: &[f64]) -> f64 {
    let (cycles_of_all, weight_of_all): (f64, f64) = (cycles.iter().sum(), weights.iter().sum());
    let off = |(cycles, weight): (&f64, &f64)| (cycles / cycles_of_all * weight_of_all / weight - 1.0).abs();
    cycles.iter().zip(weights).map(off).fold(0.0, f64::max)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// Adds to the table how even shares are, and how near to weights. Both are medians of all runs.
pub fn figures(table: &mut Table, even: &Value, weighted: &Value) -> Result<()> {
    let times = |value: &Value| -> Vec<Vec<f64>> {
        value["engine_cycles"].as_array().into_iter().flatten().map(numbers).collect()
    };
    let (even, weights, weighted) = (times(even), numbers(&weighted["weights"]), times(weighted));
    let index = median(even.iter().map(|cycles| jain(cycles)));
    table.figure("7 greedy streams, 60 and 1,500 B: Jain's index of engine cycles", index, "", Aim::AtLeast(0.999));
    let off = median(weighted.iter().map(|cycles| off(cycles, &weights)));
    table.figure("weights 4:2:1: the share of engine cycles that is farthest off", off, "", Aim::AtMost(0.03));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_index_is_one_for_equal_shares_and_less_for_others() {
        assert!((jain(&[2.0; 7]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0]) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_share_is_off_by_what_it_has_above_or_below_its_weight() {
        assert!(off(&[4.0, 2.0, 1.0], &[4.0, 2.0, 1.0]) < 1e-12);
        assert!((off(&[5.0, 5.0], &[3.0, 1.0]) - 1.0).abs() < 1e-12, "twice of what it should have");
    }

    #[test]
    fn a_port_that_was_not_served_is_an_error() {
        let counters = json!({ "ports": [{ "engine_cycles": 3 }, { "engine_cycles": 0 }] });
        assert!(cycles(&counters, 2).is_err() && cycles(&json!({}), 0).is_err());
        assert_eq!(cycles(&json!({ "ports": [{ "engine_cycles": 3 }] }), 1).unwrap(), [3.0]);
    }
}
