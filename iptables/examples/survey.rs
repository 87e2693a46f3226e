//! Prints which back end of iptables this host uses, and the contents of each. Read-only; needs `CAP_NET_ADMIN`.
//!
//! Exit code 0: the back end is clear; 1: it is not, or reading failed.

use std::process::ExitCode;

use iptables::{Backend, BackendChoice, Error, Survey, System};

fn look() -> Result<Backend, Error> {
    let survey = Survey::take(&System::new())?;
    for backend in Backend::ALL {
        let there = survey.presence(backend);
        let version = there.version.as_ref().map_or("not installed".to_owned(), ToString::to_string);
        let hint = if there.kubelet_hint { ", the kubelet's hint" } else { "" };
        println!("{backend}: {version}: {} chains, {} rules{hint}", there.chains, there.rules);
        if let Some(why) = &there.unusable {
            println!("{backend} cannot be used: {why}");
        }
    }
    survey.choose(BackendChoice::Detect)
}

fn main() -> ExitCode {
    match look() {
        Ok(backend) => {
            println!("this host uses {backend}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
