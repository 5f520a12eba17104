//! A sheet as JSON, for scripts: numbers as they are, `null` for what is not known.

use serde_json::{Map, Value as Json, json};

use super::{Sheet, Table, Value};

/// The sheet as one object: `view`, `facts`, and each table by its key, as a list of objects by the keys of the columns.
#[must_use]
pub fn whole(sheet: &Sheet) -> Json {
    let mut object = Map::new();
    object.insert("view".into(), sheet.key.into());
    object.insert("facts".into(), sheet.facts.clone().into());
    for table in std::iter::once(&sheet.main).chain(&sheet.more) {
        object.insert(table.key.into(), rows(table));
    }
    Json::Object(object)
}

fn rows(table: &Table) -> Json {
    let row = |cells: &[Value]| -> Map<String, Json> {
        table.columns.iter().zip(cells).map(|(column, cell)| (column.key.to_owned(), value(cell))).collect()
    };
    table.rows.iter().map(|one| Json::Object(row(&one.cells))).collect()
}

fn value(cell: &Value) -> Json {
    match cell {
        Value::Text(text) => text.as_str().into(),
        Value::Count(count) | Value::Bytes(count) => (*count).into(),
        // What is not finite becomes null.
        Value::Number(number) | Value::Share(number) | Value::Bar(number) => json!(number),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Tone, number, words};
    use super::*;

    #[test]
    fn every_bit_of_a_count_is_kept_and_what_is_not_known_is_null() {
        let mut main =
            Table::new("guests", "Guests", &[words("name", "n", 0), number("exits", "e", 0), number("rate", "r", 9)]);
        main.row("a", Tone::Plain, vec!["a".into(), u64::MAX.into(), None.into()]);
        let sheet = Sheet { key: "guest", facts: vec!["x".into()], main, more: Vec::new() };
        let expected =
            r#"{"view":"guest","facts":["x"],"guests":[{"name":"a","exits":18446744073709551615,"rate":null}]}"#;
        assert_eq!(whole(&sheet), serde_json::from_str::<Json>(expected).unwrap());
    }
}
