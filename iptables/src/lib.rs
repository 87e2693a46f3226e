//! iptables-save and iptables-restore as values: parse, compare, apply
