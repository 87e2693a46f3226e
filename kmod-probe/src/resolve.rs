//! From lists to an answer: the state of one requirement in the kernel, with its evidence.

use std::path::Path;

use crate::Answer;
use crate::active::{ActiveAnswer, ActiveProbe};
use crate::kconfig::Setting;
use crate::modules::{ModuleName, ModuleState};
use crate::report::{Evidence, EvidenceKind, Finding, Fix, State};
use crate::requirement::{Marker, Provider, Requirement};
use crate::root::Failure;
use crate::sources::Sources;

/// State and evidence of one provider. The first decision stands; later evidence is kept beside it.
#[derive(Debug, Default)]
struct Case {
    state: Option<State>,
    evidence: Vec<Evidence>,
    fix: Option<Fix>,
}

impl Case {
    fn see(&mut self, kind: EvidenceKind, path: &str, line: Option<usize>, says: impl Into<String>) {
        self.evidence.push(Evidence { kind, path: path.to_owned(), line, says: says.into() });
    }

    fn decide(&mut self, state: State, fix: Option<Fix>) {
        if self.state.is_none() {
            self.state = Some(state);
            self.fix = fix;
        }
    }
}

/// The finding for one requirement: the best of its providers.
pub(crate) fn finding(sources: &Sources, requirement: &Requirement, active: &mut dyn ActiveProbe) -> Finding {
    let asked = match &requirement.capability {
        Some(capability) if sources.running => active.ask(capability),
        _ => ActiveAnswer::Unknown(String::new()),
    };
    let mut best: Option<(u8, &Provider, Case)> = None;
    for provider in &requirement.providers {
        let expected = provider.is_expected_in(sources.release.get());
        let case = provide(sources, provider, &asked);
        // A provider of another kernel's age counts only when it is seen: vendors backport.
        let rank = match case.state {
            Some(State::Loaded | State::BuiltIn | State::Working) => 0,
            Some(State::Loadable) => 1,
            _ if !expected => 5,
            Some(State::Unknown) | None => 3,
            Some(State::Missing) => 4,
        };
        if best.as_ref().is_none_or(|(known, ..)| rank < *known) {
            best = Some((rank, provider, case));
        }
    }
    let (module, is_feature, case) = if let Some((_, provider, case)) = best {
        (provider.module.clone(), provider.is_feature(), case)
    } else {
        // A set type that the table does not have: only the kernel itself can know it.
        let mut case = Case::default();
        heard(&mut case, &asked);
        (None, false, case)
    };
    Finding {
        name: requirement.name.clone(),
        why: requirement.why.to_string(),
        need: requirement.need,
        backend: requirement.backend,
        state: case.state.unwrap_or(State::Unknown),
        module,
        is_feature,
        evidence: case.evidence,
        fix: case.fix,
    }
}

fn provide(sources: &Sources, provider: &Provider, asked: &ActiveAnswer) -> Case {
    let mut case = match &provider.module {
        Some(_) if provider.is_feature() => feature(sources, provider),
        Some(name) => module(sources, provider, name),
        None => option(sources, provider),
    };
    markers(sources, provider, &mut case);
    heard(&mut case, asked);
    if case.state.is_none() {
        absent(sources, provider, &mut case);
    }
    case
}

/// Weighs the running kernel's answer. A refusal alone means missing; against a list that has the module, it only stays on record:
/// a module that is not loaded yet refuses too.
fn heard(case: &mut Case, asked: &ActiveAnswer) {
    match asked {
        ActiveAnswer::Works(how) => {
            case.evidence.insert(
                0,
                Evidence {
                    kind: EvidenceKind::Active,
                    path: "the kernel itself".to_owned(),
                    line: None,
                    says: format!("says it works: {how}"),
                },
            );
            if !matches!(case.state, Some(State::Loaded | State::BuiltIn)) {
                case.state = Some(State::Working);
                case.fix = None;
            }
        }
        ActiveAnswer::Refused(how) => {
            case.see(EvidenceKind::Active, "the kernel itself", None, format!("refuses: {how}"));
            if case.state == Some(State::Unknown) {
                case.state = None; // nothing else decides
            }
            case.decide(State::Missing, None);
        }
        ActiveAnswer::Unknown(_) => {}
    }
}

/// Files that only this part of the kernel makes.
fn markers(sources: &Sources, provider: &Provider, case: &mut Case) {
    const LARGEST: u64 = 64 << 10;
    let files = provider.files.iter().map(|path| (path.as_str(), None));
    let markers = provider.markers.iter().map(|marker| match marker {
        Marker::Path(path) => (*path, None),
        Marker::Word(path, word) => (*path, Some(*word)),
    });
    for (path, word) in markers.chain(files).filter(|(path, _)| is_visible(sources, path)) {
        let says = match word {
            None => sources.root.exists(path).unwrap_or(false).then(|| "exists".to_owned()),
            Some(word) => {
                let text = sources.running_text(path, LARGEST).unwrap_or_default();
                text.lines().any(|line| line == word).then(|| format!("lists \"{word}\""))
            }
        };
        if let Some(says) = says {
            case.see(EvidenceKind::Marker, path, None, says);
            if !matches!(case.state, Some(State::Loaded | State::BuiltIn)) {
                case.state = Some(State::Working);
                case.fix = None;
            }
            return;
        }
    }
}

/// Whether a file can be seen: what the running kernel makes says nothing about another one.
fn is_visible(sources: &Sources, path: &str) -> bool {
    sources.running || !["/proc", "/sys", "/dev"].iter().any(|top| Path::new(path).starts_with(top))
}

/// An option of the kernel itself, or its version.
fn option(sources: &Sources, provider: &Provider) -> Case {
    let mut case = Case::default();
    configured(sources, provider, &mut case);
    let symbol = provider.symbol.as_ref().and_then(|symbol| sources.config.get()?.get(symbol));
    if matches!(symbol, Some((_, Setting::Module))) {
        case.decide(State::Loadable, None);
    }
    let only_version = provider.symbol.is_none() && provider.files.is_empty();
    if let (true, Some(release)) = (only_version, sources.release.get()) {
        case.see(EvidenceKind::Release, &sources.release.path, None, release.as_str());
        match provider.since {
            _ if provider.is_expected_in(Some(release)) => case.decide(State::Working, None),
            Some(since) if !release.at_least(since.0, since.1) => {
                case.decide(State::Missing, Some(Fix::NewerRelease(since)));
            }
            _ => case.decide(State::Missing, None),
        }
    }
    case
}

/// A module: in memory, then built in, then installed. What is left without a decision goes on to [`absent`].
fn module(sources: &Sources, provider: &Provider, name: &ModuleName) -> Case {
    let mut case = Case::default();
    if let Some((line, state)) = sources.loaded.get().and_then(|loaded| loaded.get(name)) {
        let path = &sources.loaded.path;
        match state {
            ModuleState::Live => {
                case.see(EvidenceKind::Loaded, path, Some(line), "");
                case.decide(State::Loaded, None);
            }
            ModuleState::Loading => case.see(EvidenceKind::Loaded, path, Some(line), "being loaded"),
            ModuleState::Unloading => case.see(EvidenceKind::Loaded, path, Some(line), "being removed"),
        }
    }
    match sources.sysfs(name) {
        Some((path, Some(state))) if state == "live" => {
            case.see(EvidenceKind::Sysfs, &path, None, "live");
            case.decide(State::Loaded, None);
        }
        Some((path, Some(_))) => case.see(EvidenceKind::Sysfs, &path, None, "being loaded or removed"),
        Some((path, None)) => {
            case.see(EvidenceKind::Sysfs, &path, None, "without initstate");
            case.decide(State::BuiltIn, None);
        }
        None => {}
    }
    for list in [&sources.builtin, &sources.modinfo] {
        if let Some(line) = list.get().and_then(|builtin| builtin.get(name)) {
            case.see(EvidenceKind::Builtin, &list.path, Some(line), "");
            case.decide(State::BuiltIn, None);
            break;
        }
    }
    configured(sources, provider, &mut case);
    installed(sources, name, &mut case);
    case
}

/// Weighs the kernel's configuration. Only `=y` decides here: a module's file counts before `=m` and "is not set".
fn configured(sources: &Sources, provider: &Provider, case: &mut Case) {
    let (Some(symbol), Some(config)) = (&provider.symbol, sources.config.get()) else { return };
    let path = &sources.config.path;
    match config.get(symbol) {
        Some((line, Setting::BuiltIn)) => {
            case.see(EvidenceKind::Config, path, Some(line), format!("CONFIG_{symbol}=y"));
            // Later kernels may use a symbol for something else: CONFIG_NF_TABLES_IPV4 was a module until 4.17.
            if !provider.is_gone_from(sources.release.get()) {
                case.decide(State::BuiltIn, None);
            }
        }
        Some((line, Setting::Module)) => case.see(EvidenceKind::Config, path, Some(line), format!("CONFIG_{symbol}=m")),
        Some((line, Setting::NotSet)) => {
            case.see(EvidenceKind::Config, path, Some(line), format!("CONFIG_{symbol} is not set"));
        }
        Some((line, Setting::Value(_))) => {
            case.see(EvidenceKind::Config, path, Some(line), format!("CONFIG_{symbol} is neither y nor m"));
        }
        None => case.see(EvidenceKind::Config, path, None, format!("does not mention CONFIG_{symbol}")),
    }
}

/// Weighs the module file that `modprobe` would find.
fn installed(sources: &Sources, name: &ModuleName, case: &mut Case) {
    let Some((line, file)) = sources.loadable.get().and_then(|loadable| loadable.get(name)) else { return };
    let path = if file.starts_with('/') { file.to_owned() } else { format!("{}/{file}", sources.directory.path) };
    let list = &sources.loadable.path;
    if sources.support.answer == Answer::No {
        case.see(EvidenceKind::Installed, list, Some(line), "but the kernel has no module support");
        return;
    }
    match sources.root.exists(&path) {
        Ok(false) => {
            let release = sources.release.get().map(ToString::to_string).unwrap_or_default();
            case.see(EvidenceKind::Installed, list, Some(line), "names a file that is not there");
            case.decide(State::Missing, Some(Fix::RestoreFile { path, release }));
        }
        _ if obstacle(sources, name, case) => {}
        _ if sources.loading_disabled => {
            case.see(EvidenceKind::Installed, list, Some(line), "but loading modules is switched off");
            case.decide(State::Missing, Some(Fix::ModulesDisabled(name.clone())));
        }
        found => {
            case.see(EvidenceKind::Installed, list, Some(line), if found.is_ok() { "" } else { "(file not checked)" });
            case.decide(State::Loadable, Some(Fix::Load(name.clone())));
        }
    }
}

/// Whether `modprobe` would refuse the module, or one that it needs and that is not there yet.
fn obstacle(sources: &Sources, name: &ModuleName, case: &mut Case) -> bool {
    if case.state.is_some() {
        return false;
    }
    let needed = sources.loadable.get().into_iter().flat_map(|loadable| loadable.dependencies(name));
    for module in std::iter::once(name.clone()).chain(needed) {
        if module != *name && is_there(sources, &module) {
            continue;
        }
        if let Some(rule) = sources.policy.forbids(&module) {
            case.see(EvidenceKind::Installed, &rule.path, Some(rule.line), &rule.says);
            let path = rule.path.clone();
            case.decide(State::Missing, Some(Fix::Allow { module, path }));
            return true;
        }
        let file = sources.loadable.get().and_then(|loadable| loadable.get(&module));
        if let Some((line, file)) = file.filter(|_| module != *name) {
            let path =
                if file.starts_with('/') { file.to_owned() } else { format!("{}/{file}", sources.directory.path) };
            if sources.root.exists(&path) == Ok(false) {
                let release = sources.release.get().map(ToString::to_string).unwrap_or_default();
                let says = format!("{module}, which {name} needs, names a file that is not there");
                case.see(EvidenceKind::Installed, &sources.loadable.path, Some(line), says);
                case.decide(State::Missing, Some(Fix::RestoreFile { path, release }));
                return true;
            }
        }
    }
    false
}

/// Whether a module need not be loaded.
fn is_there(sources: &Sources, module: &ModuleName) -> bool {
    let loaded = sources.loaded.get().and_then(|loaded| loaded.get(module));
    let live = loaded.is_some_and(|(_, state)| state == ModuleState::Live);
    let built_in = [&sources.builtin, &sources.modinfo]
        .iter()
        .any(|list| list.get().is_some_and(|list| list.get(module).is_some()));
    live || built_in || sources.sysfs(module).is_some()
}

/// A part of a module that the configuration switches: what the module is, when it is switched on.
fn feature(sources: &Sources, provider: &Provider) -> Case {
    let mut switch = Case::default();
    configured(sources, provider, &mut switch);
    if switch.state != Some(State::BuiltIn) {
        return switch;
    }
    let symbol = provider.part_of.clone().filter(|symbol| !symbol.is_empty());
    let host = Provider { symbol, part_of: None, markers: &[], files: Vec::new(), ..provider.clone() };
    let mut case = host.module.as_ref().map(|name| module(sources, &host, name)).unwrap_or_default();
    if case.state.is_none() {
        // =y for a part says that the whole is at least a module.
        absent(sources, &host, &mut case);
    }
    switch.evidence.append(&mut case.evidence);
    Case { evidence: switch.evidence, ..case }
}

/// No list has it. Is that because the kernel has not got it, or because the lists could not be read?
fn absent(sources: &Sources, provider: &Provider, case: &mut Case) {
    let release = sources.release.get();
    let name = release.map(ToString::to_string).unwrap_or_default();
    let config = sources.config.get();
    if provider.symbol.is_none() && provider.module.is_none() && !provider.files.is_empty() {
        return without_file(sources, provider, case);
    }
    let setting = provider.symbol.as_ref().and_then(|symbol| Some((symbol, config?.get(symbol))));
    let without = |symbol: &String| match provider.since {
        Some(since) if !provider.is_expected_in(release) => Fix::NewerKernel { symbol: symbol.clone(), since },
        _ => Fix::KernelWith(symbol.clone()),
    };
    match setting {
        Some((symbol, Some((_, Setting::NotSet)))) => return case.decide(State::Missing, Some(without(symbol))),
        // A part of a module is never a module itself: here the symbol means something older.
        Some((symbol, Some((_, Setting::Module)))) if provider.is_feature() => {
            return case.decide(State::Missing, Some(without(symbol)));
        }
        // A whole configuration that does not mention a symbol: the kernel has none, or something it needs is off.
        Some((symbol, None)) if config.is_some_and(crate::Kconfig::complete) => {
            return case.decide(State::Missing, Some(without(symbol)));
        }
        _ => {}
    }
    let Some(release) = release else {
        let fix = if matches!(sources.release.content, Err(Failure::Denied)) {
            Fix::GrantRead(sources.release.path.clone())
        } else {
            Fix::ShowRelease
        };
        return case.decide(State::Unknown, Some(fix));
    };
    let Some(module) = provider.module.as_ref().filter(|_| !provider.is_feature()) else {
        let fix = match &sources.config.content {
            Err(Failure::Denied) => Fix::GrantRead(sources.config.path.clone()),
            _ => Fix::ShowConfig(name),
        };
        return case.decide(State::Unknown, Some(fix));
    };
    let is_module = matches!(setting, Some((_, Some((_, Setting::Module)))));
    match (&sources.directory.content, &sources.loadable.content) {
        // Without module support only a list of what is built in can tell.
        _ if sources.support.answer == Answer::No => match (&provider.symbol, listed_builtin(sources)) {
            (Some(symbol), true) => case.decide(State::Missing, Some(Fix::KernelWith(symbol.clone()))),
            (Some(symbol), false) if is_module => case.decide(State::Missing, Some(Fix::KernelWith(symbol.clone()))),
            _ => case.decide(State::Unknown, Some(Fix::ShowConfig(name))),
        },
        (_, Ok(loadable)) if loadable.complete() && (is_module || listed_builtin(sources)) => {
            case.see(EvidenceKind::Installed, &sources.loadable.path, None, format!("does not list {module}"));
            let fix = match &provider.symbol {
                Some(symbol) if !is_module && !provider.is_expected_in(Some(release)) => without(symbol),
                _ => Fix::InstallModule { module: module.clone(), release: name },
            };
            case.decide(State::Missing, Some(fix));
        }
        (Err(Failure::Denied), _) => case.decide(State::Unknown, Some(Fix::GrantRead(sources.directory.path.clone()))),
        (_, Err(Failure::Denied)) => case.decide(State::Unknown, Some(Fix::GrantRead(sources.loadable.path.clone()))),
        (Ok(()), Err(_)) => case.decide(State::Unknown, Some(Fix::RunDepmod(name))),
        (Ok(()), Ok(_)) => {
            let incomplete = !sources.loadable.get().is_some_and(crate::LoadableModules::complete);
            let fix = if incomplete { Fix::RunDepmod(name) } else { Fix::ShowConfig(name) };
            case.decide(State::Unknown, Some(fix));
        }
        (Err(_), _) => {
            let others = sources.other_releases.clone();
            case.decide(State::Unknown, Some(Fix::MountModules { release: name, others }));
        }
    }
}

/// None of the files that were asked for was seen.
fn without_file(sources: &Sources, provider: &Provider, case: &mut Case) {
    for path in &provider.files {
        match sources.root.exists(path).map(|_| is_visible(sources, path)) {
            Ok(true) => {
                case.see(EvidenceKind::Marker, path, None, "is not there");
                case.decide(State::Missing, Some(Fix::ProvideFile(path.clone())));
            }
            Err(Failure::Denied) => case.decide(State::Unknown, Some(Fix::GrantRead(path.clone()))),
            _ => case.decide(State::Unknown, None),
        }
    }
}

/// Whether a whole list of what is built in was read, so that what it does not name is not built in.
fn listed_builtin(sources: &Sources) -> bool {
    sources.builtin.get().is_some_and(crate::BuiltinModules::complete)
}
