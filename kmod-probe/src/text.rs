//! Prints the report as a table. No line is longer than 100 columns unless a single word is.

use std::fmt::{self, Write};

use crate::Answer;
use crate::report::{Finding, Report, State};
use crate::requirement::Need;
use crate::root::Failure;
use crate::sysctl::{Access, SysctlState};

const WIDTH: usize = 100;

impl Report {
    /// The report as a table: verdict, requirements with evidence and fix, sysctls, and the lists that could not be read.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = String::new();
        // Writing to a String cannot fail.
        let _infallible = self.write_table(&mut table);
        table
    }

    fn write_table(&self, out: &mut dyn Write) -> fmt::Result {
        let release = self.release.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string);
        writeln!(
            out,
            "kernel {release}, modules {}",
            match self.module_support {
                Answer::Yes => "supported",
                Answer::No => "not supported",
                Answer::Unknown => "perhaps supported",
            }
        )?;
        if self.root != "/" {
            wrapped(out, "root ", &self.root)?;
        }
        writeln!(out, "{}: {}", self.subject, self.verdict.answer)?;
        for reason in &self.verdict.reasons {
            wrapped(out, "  - ", reason)?;
        }
        for caveat in &self.verdict.caveats {
            wrapped(out, "  note: ", caveat)?;
        }
        writeln!(out, "\n{:<8} {:<8} {:<21} EVIDENCE", "STATE", "NEED", "REQUIREMENT")?;
        for finding in &self.findings {
            row(out, finding)?;
        }
        for (backend, answer) in &self.backends {
            writeln!(out, "iptables-{}: {answer}", backend.as_str())?;
        }
        if !self.sysctls.is_empty() {
            writeln!(out, "\n{:<10} {:<9} {:<6} {:<11} SYSCTL", "STATE", "VALUE", "WANTED", "ACCESS")?;
        }
        for sysctl in &self.sysctls {
            let state = match &sysctl.state {
                SysctlState::Right => "right",
                SysctlState::Wrong => "wrong",
                SysctlState::Absent => "absent",
                SysctlState::Unreadable(_) => "unreadable",
            };
            let access = match sysctl.access {
                Access::Writable => "writable",
                Access::ReadOnly => "read-only",
                Access::Denied => "denied",
                Access::Unknown => "-",
            };
            let value: String = sysctl.current.as_deref().unwrap_or("-").chars().take(9).collect();
            writeln!(out, "{state:<10} {value:<9} {:<6} {access:<11} {}", sysctl.wanted, sysctl.name)?;
        }
        writeln!(out)?;
        for source in &self.sources {
            match &source.failure {
                Some(Failure::NotTried(_)) => {} // another failure is the cause
                Some(failure) => wrapped(out, "not used: ", &format!("{} ({failure})", source.path))?,
                None if !source.complete => wrapped(out, "incomplete: ", &source.path)?,
                None => {}
            }
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_table(f)
    }
}

fn row(out: &mut dyn Write, finding: &Finding) -> fmt::Result {
    let need = match finding.need {
        Need::Required => "required",
        Need::Either => "either",
        Need::Wanted => "wanted",
    };
    let evidence = finding.evidence.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
    let head = format!("{:<8} {need:<8} {:<21} ", finding.state.as_str(), finding.name);
    wrapped(out, &head, &evidence)?;
    if let (Some(fix), State::Missing | State::Unknown) = (&finding.fix, finding.state) {
        wrapped(out, &format!("{:>17} fix: ", ""), &fix.to_string())?;
    }
    Ok(())
}

/// A heading, then text that is wrapped between words and indented to the heading's width.
fn wrapped(out: &mut dyn Write, head: &str, text: &str) -> fmt::Result {
    let indent = head.chars().count();
    let mut column = indent;
    out.write_str(head)?;
    for (index, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if index > 0 && column.saturating_add(1).saturating_add(length) > WIDTH {
            write!(out, "\n{:indent$}", "")?;
            column = indent;
        } else if index > 0 {
            out.write_str(" ")?;
            column = column.saturating_add(1);
        }
        out.write_str(word)?;
        column = column.saturating_add(length);
    }
    writeln!(out)
}
