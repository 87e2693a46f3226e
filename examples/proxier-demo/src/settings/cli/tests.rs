use super::*;

#[test]
fn claps_own_checks_pass() {
    clap().debug_assert();
}

/// The help shows `[X]` if X is the default.
#[test]
fn defaults_in_the_help_are_the_real_ones() {
    for arg in flags::args() {
        let (name, help) = (arg.get_id().as_str(), arg.get_help().map(ToString::to_string).unwrap_or_default());
        let Some((_, default)) = help.strip_suffix(']').and_then(|help| help.rsplit_once('[')) else { continue };
        for mode in Kind::ALL {
            let configured = |line: &str| {
                let invocation = parse(line.split_whitespace().map(OsString::from)).unwrap();
                invocation.configure().unwrap_or_else(|stopped| panic!("{line}: {stopped:?}")).settings
            };
            let checked = |line: &str| {
                let settings = configured(&format!("proxier-demo run {line} --proxy-mode {mode}"));
                let object = serde_json::to_value(&settings.object).unwrap();
                let of_flag = flags_of(&object).find(|(flag, _)| *flag == name).map(|(_, value)| value);
                (of_flag, format!("{:?}", Settings { object: KubeProxyConfiguration::default(), ..settings }))
            };
            let (without, given) = (checked(""), checked(&format!("--{name}={default}")));
            assert_eq!(without.1, given.1, "{name}");
            assert!(without.0 == Some(String::new()) || without.0 == given.0, "{name}: {:?}, {:?}", without.0, given.0);
        }
    }
}
