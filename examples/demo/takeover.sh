#!/bin/sh
# A node changes from a kube-proxy in iptables mode to proxier-demo in nftables mode, and back, while a client connects without a pause and keeps a
# connection open. kube-proxy itself is not run: its rules are those of examples/proxier-demo/tests/fixtures/kube-proxy, as 1.28 leaves them.
# `cargo xtask demo --mode takeover` starts this on the machine's own kernel. It changes nothing outside of its namespaces, and needs root:
#
#   takeover.sh PROXIER-DEMO [--check]
#
# Exit code: 0 no connection has failed and all is as it says, 1 something is not, 2 bad usage.
set -u
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
here=$(dirname "$0")
proxy=${1:-}
check=${2:-}
if [ ! -x "$proxy" ] || [ $# -gt 2 ] || { [ -n "$check" ] && [ "$check" != --check ]; }; then
    echo "usage: takeover.sh PROXIER-DEMO [--check]" >&2
    exit 2
fi
work=$(mktemp -d /run/proxier-demo.XXXXXX) || exit 1
python="/usr/bin/python3 -I -S"
kept="$here/../proxier-demo/tests/fixtures/kube-proxy/iptables.rules"
service=10.96.0.10
node=192.0.2.1
jobs=
number=0

say() { [ -n "$check" ] || printf '%s\n' "$@"; }
step() {
    number=$((number + 1))
    say "" "$number. $1" ""
}
ok() { say "   ok: $1"; }
fail() {
    echo "FAILED in step $number: $1" >&2
    cat "$work"/*.error "$work"/*.failed >&2 2>/dev/null
    [ ! -s "$work/log" ] || { echo "--- the proxy's log" && tail -n 30 "$work/log"; } >&2
    exit 1
}
# until_so SECONDS WHAT COMMAND...: waits until COMMAND succeeds.
until_so() {
    what=$2
    end=$(($(date +%s) + $1))
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$end" ] || fail "not so in time: $what"
        sleep 0.1
    done
    ok "$what"
}
on_node() { ip netns exec takeover-node "$@"; }
on_client() { ip netns exec takeover-client "$@"; }
cleanup() {
    [ -z "$jobs" ] || kill $jobs 2>/dev/null
    for namespace in client node pods; do ip netns delete "takeover-$namespace" 2>/dev/null; done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

# What kube-proxy does when it starts: its chains and jumps, beside whatever is there.
kube_proxy_writes() {
    sed -e 's/^#1\.28 //' -e '/^#/d' "$kept" | on_node iptables-restore --noflush || fail "iptables-restore"
}
rules() { on_node iptables-save -t nat | grep -c "KUBE-S[EV][PC]"; }
no_rules() { [ "$(rules)" -eq 0 ]; }
table() { on_node nft list table ip proxier; }
no_table() { ! table; }
answer() { on_client $python "$here/talk.py" ask tcp "$1" "$2" "${3:-1}"; }
answers_from() { answer $service 80 20 | grep -q "^$1 "; }
# A counter that talk.py writes, some connections later.
goes_on() {
    before=$(cat "$work/many.made" 2>/dev/null || echo 0)
    sleep 1
    now=$(cat "$work/many.made" 2>/dev/null || echo 0)
    [ "$now" -gt $((before + 10)) ] || fail "the client has come to a halt: $before connections, then $now"
    [ ! -s "$work/many.failed" ] || fail "connections of the client failed: $(tail -n 1 "$work/many.failed")"
    kill -0 "$holder" 2>/dev/null || fail "the open connection broke: $(cat "$work/held.error")"
    ok "the client: $(cat "$work/many.made") connections so far, failures 0, and the open one answers"
}

step "A node that kube-proxy serves, in iptables mode"
for namespace in client node pods; do
    ip netns add "takeover-$namespace" || fail "no namespace takeover-$namespace (is another demo running?)"
    ip -n "takeover-$namespace" link set lo up || fail "lo"
done
ip link add eth0 netns takeover-client type veth peer name eth9 netns takeover-node &&
    ip link add eth0 netns takeover-pods type veth peer name pod9 netns takeover-node || fail "the devices"
{
    echo "address add $node/24 dev eth9"
    echo "address add 10.244.0.1/24 dev pod9"
    echo "link set eth9 up"
    echo "link set pod9 up"
} | ip -n takeover-node -batch - || fail "the node's addresses"
ip -n takeover-client address add 192.0.2.2/24 dev eth0 && ip -n takeover-client link set eth0 up &&
    ip -n takeover-client route add 10.96.0.0/16 via $node || fail "the client's addresses"
ip -n takeover-pods address add 10.244.0.5/24 dev eth0 && ip -n takeover-pods address add 10.244.0.6/24 dev eth0 &&
    ip -n takeover-pods link set eth0 up && ip -n takeover-pods route add default via 10.244.0.1 || fail "the pods' addresses"
on_node sysctl -q -w net.ipv4.ip_forward=1 || fail "sysctl"
ip netns exec takeover-pods $python "$here/talk.py" serve web-1=tcp:10.244.0.5:8080 web-2=tcp:10.244.0.6:8080 >"$work/pods" 2>&1 &
jobs=$!
until_so 30 "the pods listen" grep -q ready "$work/pods"
kube_proxy_writes
ok "$(rules) lines of nat are about its Services and endpoints"
until_so 30 "the Service answers" answers_from web-1
touch "$work/many" "$work/held"
# Not through a function: $! is to be the program itself.
ip netns exec takeover-client $python "$here/talk.py" count "$work/many" $service:80 $node:30080 2>"$work/many.error" &
counter=$!
ip netns exec takeover-client $python "$here/talk.py" hold $service 80 web-1 "$work/held" 2>"$work/held.error" &
holder=$!
jobs="$jobs $counter $holder"
until_so 30 "a client has a connection open" test -s "$work/held.answers"
goes_on

step "proxier-demo takes over, in nftables mode"
cp -r "$here/takeover" "$work/manifests" || fail "cp"
ip netns exec takeover-node "$proxy" run --proxy-mode nftables --no-fallback --manifests "$work/manifests" --hostname-override takeover-node \
    --cluster-cidr 10.244.0.0/16 --conntrack-max-per-core 0 --oom-score-adj 0 >"$work/log" 2>&1 &
running=$!
jobs="$jobs $running"
until_so 60 "the kernel has its table" table
until_so 30 "kube-proxy's chains are gone" no_rules
goes_on

step "It serves: a second endpoint comes and goes"
endpoint="- {addresses: [10.244.0.6]}"
# web LINE...: the Service with these lines more, whole or not at all.
web() {
    { cat "$here/takeover/web.yaml" && printf '%s\n' "$@"; } >"$work/manifests/.new" &&
        mv "$work/manifests/.new" "$work/manifests/web.yaml" || fail "mv"
}
web "$endpoint"
until_so 30 "the new pod answers" answers_from web-2
web
no_second() { ! answers_from web-2; }
until_so 30 "it does not answer any more" no_second
goes_on

step "Back to kube-proxy"
kill -TERM "$running"
wait "$running" || fail "the proxy ended with code $?"
ok "the proxy has ended; what it has told the kernel stays"
goes_on
kube_proxy_writes
ok "kube-proxy has written its rules again"
goes_on
on_node "$proxy" cleanup --keep iptables >"$work/cleaned" 2>&1 || fail "cleanup: $(cat "$work/cleaned")"
no_table 2>/dev/null >/dev/null || fail "a table is left"
[ "$(rules)" -gt 0 ] || fail "kube-proxy's rules are gone"
ok "proxier-demo cleanup --keep iptables: $(cat "$work/cleaned"); kube-proxy's rules stay"
goes_on

step "The client"
rm "$work/many" "$work/held"
wait "$holder" || fail "the open connection broke: $(cat "$work/held.error")"
wait "$counter" || fail "the client: $(cat "$work/many.error" "$work/many.failed" 2>/dev/null)"
made=$(cat "$work/many.made")
say "   connections $made, failures 0; the slowest took $(cat "$work/many.slowest") ms; the open one had $(cat "$work/held.answers") answers"
[ -z "$check" ] || echo "takeover: ok, connections $made, failures 0, the slowest $(cat "$work/many.slowest") ms"
