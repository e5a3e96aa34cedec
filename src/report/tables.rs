//! The forms that all tables share: aligned text, CSV, byte counts.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// Aligned text with a line of heads. Columns named in `right` are right-aligned, as numbers are. No colours, and no
/// line is broken, so that it can be searched and cut.
pub fn table(heads: &[&str], right: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heads.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for (i, _) in heads.iter().enumerate().filter(|(_, h)| right.contains(h)) {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// Comma-separated values with a line of heads; quoted as RFC 4180 has it.
pub fn csv(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let field = |text: &str| match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    };
    let line = |fields: Vec<String>| format!("{}\n", fields.join(","));
    let mut text = line(heads.iter().map(|h| field(h)).collect());
    for row in rows {
        text.push_str(&line(row.iter().map(|f| field(f)).collect()));
    }
    text
}

/// `1.2 MiB`; whole bytes below 1 KiB.
pub fn human_bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64 / 1024.0;
    if value < 1.0 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        let rows = vec![vec!["a,b".to_string(), "say \"x\"".to_string()]];
        assert_eq!(csv(&["name", "note"], rows), "name,note\n\"a,b\",\"say \"\"x\"\"\"\n");
    }

    #[test]
    fn numbers_are_right_aligned() {
        let text =
            table(&["name", "bytes"], &["bytes"], [vec!["w".into(), "7".into()], vec!["long".into(), "12".into()]]);
        assert_eq!(text, "| name | bytes |\n|------|-------|\n| w    |     7 |\n| long |    12 |\n");
        assert_eq!((human_bytes(1023), human_bytes(1536)), ("1023 B".to_string(), "1.5 KiB".to_string()));
    }
}
