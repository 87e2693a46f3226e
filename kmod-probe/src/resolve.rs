//! Derives the state of one requirement, its evidence and its remedy from the lists.

use crate::Answer;
use crate::active::{ActiveAnswer, ActiveProbe};
use crate::kconfig::Setting;
use crate::modules::{ModuleName, ModuleState};
use crate::report::{Evidence, Finding, Fix, State};
use crate::requirement::Requirement;
use crate::root::Failure;
use crate::sources::Sources;

/// A decision and its evidence.
struct Judged {
    state: State,
    evidence: Option<Evidence>,
    fix: Option<Fix>,
}

impl Judged {
    fn new(state: State, evidence: Option<Evidence>, fix: Option<Fix>) -> Self {
        Self { state, evidence, fix }
    }

    fn unknown(evidence: Option<Evidence>, fix: Fix) -> Self {
        Self::new(State::Unknown, evidence, Some(fix))
    }
}

fn seen(path: &str, line: Option<usize>, says: impl Into<String>) -> Evidence {
    Evidence { path: path.to_owned(), line, says: says.into() }
}

pub(crate) fn finding(sources: &Sources, requirement: &Requirement, active: &mut dyn ActiveProbe) -> Finding {
    let asked = requirement.capability.as_ref().map(|capability| active.ask(capability));
    let listed = match (&requirement.module, &requirement.part_of) {
        (Some(module), Some(whole)) => part(sources, requirement, module, whole),
        (Some(module), None) => whole(sources, module, requirement.symbol.as_deref()),
        // A set type that is not in the table: only the kernel itself can tell.
        (None, _) => Judged::new(State::Unknown, None, None),
    };
    let Judged { state, evidence, fix } = heard(listed, asked);
    Finding {
        name: requirement.name.clone(),
        why: requirement.why.to_string(),
        need: requirement.need,
        backend: requirement.backend,
        state,
        module: requirement.module.clone(),
        is_feature: requirement.part_of.is_some(),
        evidence,
        fix,
    }
}

/// Includes the running kernel's answer. A refusal only counts if no list decides, since a module that is not loaded
/// yet refuses too.
fn heard(listed: Judged, asked: Option<ActiveAnswer>) -> Judged {
    let says = |text: String| Some(seen("the kernel itself", None, text));
    match asked {
        Some(ActiveAnswer::Works(how)) if !matches!(listed.state, State::Loaded | State::BuiltIn) => {
            Judged::new(State::Working, says(format!("says it works: {how}")), None)
        }
        Some(ActiveAnswer::Refused(how)) if listed.state == State::Unknown => {
            Judged::new(State::Missing, says(format!("refuses: {how}")), None)
        }
        _ => listed,
    }
}

/// The state of a module: first loaded, then built in, then installed.
fn whole(sources: &Sources, name: &ModuleName, symbol: Option<&str>) -> Judged {
    loaded(sources, name)
        .or_else(|| built_in(sources, name, symbol))
        .or_else(|| installed(sources, name))
        .unwrap_or_else(|| absent(sources, name, symbol))
}

fn loaded(sources: &Sources, name: &ModuleName) -> Option<Judged> {
    let evidence = match sources.loaded.get().and_then(|loaded| loaded.get(name)) {
        Some((line, ModuleState::Live)) => seen(&sources.loaded.path, Some(line), ""),
        _ => match sources.sysfs(name)? {
            (path, Some(state)) if state == "live" => seen(&path, None, "live"),
            _ => return None,
        },
    };
    Some(Judged::new(State::Loaded, Some(evidence), None))
}

fn built_in(sources: &Sources, name: &ModuleName, symbol: Option<&str>) -> Option<Judged> {
    let listed = sources.builtin.get().and_then(|builtin| builtin.get(name));
    let evidence = if let Some((path, None)) = sources.sysfs(name) {
        seen(&path, None, "without initstate")
    } else if listed.is_some() {
        seen(&sources.builtin.path, listed, "")
    } else {
        match sources.config.get()?.get(symbol?)? {
            (_, Setting::BuiltIn) => configured(sources, symbol?)?,
            _ => return None,
        }
    };
    Some(Judged::new(State::BuiltIn, Some(evidence), None))
}

/// The module file that `modprobe` would load. `modprobe` fails if the module or one of its dependencies is forbidden
/// or its file is missing.
fn installed(sources: &Sources, name: &ModuleName) -> Option<Judged> {
    let loadable = sources.loadable.get()?;
    let (line, _) = loadable.get(name)?;
    if sources.module_support == Answer::No {
        return None;
    }
    let is_there = |module: &ModuleName| loaded(sources, module).or_else(|| built_in(sources, module, None)).is_some();
    for module in std::iter::once(name.clone()).chain(loadable.dependencies(name).filter(|module| !is_there(module))) {
        if let Some(forbids) = sources.forbidden.get(&module) {
            let fix = Fix::Allow { module, path: forbids.path.clone() };
            return Some(Judged::new(State::Missing, Some(forbids.clone()), Some(fix)));
        }
        let Some((line, file)) = loadable.get(&module) else { continue };
        let path = if file.starts_with('/') { file.to_owned() } else { format!("{}/{file}", sources.directory.path) };
        if sources.root.exists(&path) == Ok(false) {
            let release = sources.release.get().map(ToString::to_string).unwrap_or_default();
            let evidence = seen(&sources.loadable.path, Some(line), format!("names {module}, whose file is not there"));
            return Some(Judged::new(State::Missing, Some(evidence), Some(Fix::RestoreFile { path, release })));
        }
    }
    let list = |says: &str| Some(seen(&sources.loadable.path, Some(line), says));
    Some(if sources.loading_disabled {
        let fix = Fix::ModulesDisabled(name.clone());
        Judged::new(State::Missing, list("but loading modules is switched off"), Some(fix))
    } else {
        Judged::new(State::Loadable, list(""), Some(Fix::Load(name.clone())))
    })
}

/// The line of the configuration about a symbol.
fn configured(sources: &Sources, symbol: &str) -> Option<Evidence> {
    let (line, says) = match sources.config.get()?.get(symbol) {
        Some((line, Setting::BuiltIn)) => (Some(line), format!("CONFIG_{symbol}=y")),
        Some((line, Setting::Module)) => (Some(line), format!("CONFIG_{symbol}=m")),
        Some((line, Setting::NotSet)) => (Some(line), format!("CONFIG_{symbol} is not set")),
        Some((line, Setting::Value(_))) => (Some(line), format!("CONFIG_{symbol} is neither y nor m")),
        None => (None, format!("does not mention CONFIG_{symbol}")),
    };
    Some(seen(&sources.config.path, line, says))
}

/// Whether the configuration shows that the kernel was built without it: "is not set", or a complete configuration
/// without the symbol.
fn is_left_out(sources: &Sources, symbol: &str) -> bool {
    let Some(config) = sources.config.get() else { return false };
    match config.get(symbol) {
        Some((_, setting)) => *setting == Setting::NotSet,
        None => config.complete(),
    }
}

/// The state of a part that the configuration switches: that of its module if it is switched on.
fn part(sources: &Sources, requirement: &Requirement, module: &ModuleName, symbol_of_whole: &str) -> Judged {
    let symbol = requirement.symbol.as_deref().unwrap_or_default();
    let evidence = configured(sources, symbol);
    let setting = sources.config.get().and_then(|config| config.get(symbol));
    match setting {
        Some((_, Setting::BuiltIn)) => whole(sources, module, Some(symbol_of_whole)),
        // A part is never a module itself.
        Some((_, Setting::Module)) => Judged::new(State::Missing, evidence, Some(Fix::KernelWith(symbol.to_owned()))),
        _ if is_left_out(sources, symbol) => {
            Judged::new(State::Missing, evidence, Some(Fix::KernelWith(symbol.to_owned())))
        }
        _ => Judged::unknown(evidence, no_release(sources).unwrap_or_else(|| show_config(sources))),
    }
}

/// Remedy if even the kernel's release is unknown.
fn no_release(sources: &Sources) -> Option<Fix> {
    match &sources.release.content {
        Ok(_) => None,
        Err(Failure::Denied) => Some(Fix::GrantRead(sources.release.path.clone())),
        Err(_) => Some(Fix::ShowRelease),
    }
}

fn show_config(sources: &Sources) -> Fix {
    match &sources.config.content {
        Err(Failure::Denied) => Fix::GrantRead(sources.config.path.clone()),
        _ => Fix::ShowConfig(sources.release.get().map(ToString::to_string).unwrap_or_default()),
    }
}

/// No list has it: decides whether the kernel lacks it or the lists could not be read.
fn absent(sources: &Sources, module: &ModuleName, symbol: Option<&str>) -> Judged {
    let evidence = symbol.and_then(|symbol| configured(sources, symbol));
    if let Some(symbol) = symbol.filter(|symbol| is_left_out(sources, symbol)) {
        return Judged::new(State::Missing, evidence, Some(Fix::KernelWith(symbol.to_owned())));
    }
    if let Some(fix) = no_release(sources) {
        return Judged::unknown(evidence, fix);
    }
    let release = sources.release.get().map(ToString::to_string).unwrap_or_default();
    let setting = symbol.and_then(|symbol| sources.config.get()?.get(symbol));
    let is_module = matches!(setting, Some((_, Setting::Module)));
    let knows_builtin = sources.builtin.get().is_some_and(crate::BuiltinModules::complete);
    if sources.module_support == Answer::No {
        // Without module support only a list of built-in modules can tell.
        let line = sources.loadable.get().and_then(|loadable| loadable.get(module)).map(|(line, _)| line);
        let listed = line.map(|line| seen(&sources.loadable.path, Some(line), "but this kernel loads no modules"));
        return match symbol.filter(|_| is_module || knows_builtin) {
            Some(symbol) => Judged::new(State::Missing, evidence, Some(Fix::KernelWith(symbol.to_owned()))),
            None => Judged::unknown(listed.or(evidence), Fix::ShowConfig(release)),
        };
    }
    match (&sources.directory.content, &sources.loadable.content) {
        (_, Ok(loadable)) if loadable.complete() && (is_module || knows_builtin) => {
            let list = Some(seen(&sources.loadable.path, None, format!("does not list {module}")));
            let fix = Fix::InstallModule { module: module.clone(), release };
            Judged::new(State::Missing, if is_module { evidence } else { list }, Some(fix))
        }
        (Err(Failure::Denied), _) => Judged::unknown(evidence, Fix::GrantRead(sources.directory.path.clone())),
        (_, Err(Failure::Denied)) => Judged::unknown(evidence, Fix::GrantRead(sources.loadable.path.clone())),
        (Ok(()), Err(_)) => Judged::unknown(evidence, Fix::RunDepmod(release)),
        (Ok(()), Ok(loadable)) if !loadable.complete() => Judged::unknown(evidence, Fix::RunDepmod(release)),
        (Ok(()), Ok(_)) => Judged::unknown(evidence, Fix::ShowConfig(release)),
        (Err(_), _) => {
            let others = sources.other_releases.clone();
            Judged::unknown(evidence, Fix::MountModules { release, others })
        }
    }
}
