//! Shared by the examples: how they end, and a table with columns that fit their content.

use std::process::ExitCode;

/// Failure of an example, of any type.
pub type Failure = Box<dyn std::error::Error>;

/// Ends a program: prints a failure with its causes, one a line.
pub fn end(result: Result<(), Failure>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}

/// Prints rows under headings, each column as wide as its widest cell.
pub fn print(headings: &[&str], rows: &[Vec<String>]) {
    print!("{}", render(headings, rows));
}

/// The table as text.
pub fn render(headings: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column)).map(|cell| cell.chars().count());
    let widths: Vec<usize> = headings
        .iter()
        .enumerate()
        .map(|(column, heading)| cells(column).max().unwrap_or(0).max(heading.len()))
        .collect();
    let headings: Vec<String> = headings.iter().map(|&heading| heading.to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&headings).chain(rows) {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["10.0.0.1:80".to_owned(), "rr".to_owned()], vec!["x".to_owned(), "wlc".to_owned()]];
        assert_eq!(
            super::render(&["VIP", "SCHEDULER"], &rows),
            "VIP          SCHEDULER\n10.0.0.1:80  rr\nx            wlc\n"
        );
    }
}
