#!/bin/sh
# What a mode does, on a real kernel: network namespaces for a client, a node and pods, the proxy on the node, and traffic.
# `cargo xtask demo` starts this in a virtual machine, with IPVS; `cargo xtask demo --mode MODE` on this machine's own kernel. It
# changes nothing outside of its namespaces but kernel modules, needs root, and can also be started by hand:
#
#   demo.sh PROXIER-DEMO [--mode ipvs|nftables|iptables|userspace|auto] [--check | --shell]
#
# Every step is checked. Exit code: 0 all is as it says, 1 something is not, 2 bad usage.
set -u
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
here=$(dirname "$0")
proxy=${1:-}
[ $# -eq 0 ] || shift
kind=ipvs
if [ "${1:-}" = --mode ]; then
    kind=${2:-}
    shift 2 || proxy=
fi
mode=${1:-}
case "$mode" in '' | --check | --shell) ;; *) proxy= ;; esac
case "$kind" in ipvs | nftables | iptables | userspace | auto) ;; *) proxy= ;; esac
if [ ! -x "$proxy" ] || [ $# -gt 1 ]; then
    echo "usage: demo.sh PROXIER-DEMO [--mode ipvs|nftables|iptables|userspace|auto] [--check | --shell]" >&2
    exit 2
fi
asked=$kind

work=$(mktemp -d /run/proxier-demo.XXXXXX) || exit 1
manifests=$work/manifests
# Without its site packages it starts sooner.
python="/usr/bin/python3 -I -S"
node_address=192.168.50.1
web=10.96.0.80
cart=10.96.0.90
dns=10.96.0.10
checks=0
proxy_pid=
jobs=

# --- saying and checking ---

say() { [ "$mode" = --check ] || printf '%s\n' "$@"; }
number=0
step() {
    number=$((number + 1))
    say "" "$number. $1" ""
    shift
    for line; do say "   $line"; done
}
# A command as the reader would type it.
typed() { say "" "   \$ $*"; }
indent() { if [ "$mode" = --check ]; then cat >/dev/null; else sed 's/^/   | /'; fi; }
fail() {
    echo "FAILED in step $number: $1" >&2
    if [ -n "$proxy_pid" ]; then
        echo "--- what the kernel has" >&2
        held >&2
        echo "--- the proxy's log" >&2
        tail -n 30 "$work/log" >&2
    fi
    exit 1
}
ok() {
    checks=$((checks + 1))
    say "   ok: $1"
}
# until_so SECONDS WHAT COMMAND...: waits until COMMAND succeeds.
until_so() {
    limit=$1 what=$2
    shift 2
    end=$(($(date +%s) + limit))
    until "$@" >/dev/null 2>&1; do
        [ -z "$proxy_pid" ] || kill -0 "$proxy_pid" 2>/dev/null || fail "the proxy has ended; not so: $what"
        [ "$(date +%s)" -lt "$end" ] || fail "not within $limit s: $what"
        sleep 0.1
    done
    ok "$what"
}

# --- the network ---

on_node() { ip netns exec node "$@"; }
on_client() { ip netns exec client "$@"; }

cleanup() {
    [ -z "$jobs$proxy_pid" ] || kill $jobs $proxy_pid 2>/dev/null
    for namespace in client node pods; do ip netns delete "$namespace" 2>/dev/null; done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

network() {
    if [ "$kind" = ipvs ]; then
        modprobe ip_vs 2>/dev/null
        modprobe dummy 2>/dev/null
    fi
    for namespace in client node pods; do
        ip netns add "$namespace" || fail "no namespace $namespace (is another demo running?)"
        ip -n "$namespace" link set lo up || fail "lo of $namespace"
    done
    ip link add to-node netns client type veth peer name to-client netns node &&
        ip -n client address add 192.168.50.2/24 dev to-node &&
        ip -n node address add $node_address/24 dev to-client &&
        ip link add to-node netns pods type veth peer name to-pods netns node &&
        ip -n node address add 10.244.0.1/24 dev to-pods || fail "the devices between the namespaces"
    for pod in 11 12 13 14 21 22 31 32; do
        echo "address add 10.244.0.$pod/24 dev to-node"
    done | ip -n pods -batch - || fail "the addresses of the pods"
    ip -n client link set to-node up && ip -n node link set to-client up &&
        ip -n node link set to-pods up && ip -n pods link set to-node up || fail "the devices do not come up"
    ip -n client route add default via $node_address && ip -n pods route add default via 10.244.0.1 ||
        fail "the routes"
    # Not through on_pods: $! is to be the program itself, not a shell that waits for it.
    ip netns exec pods $python "$here/talk.py" serve \
        web-1=tcp:10.244.0.11:8080 web-2=tcp:10.244.0.12:8080 web-3=tcp:10.244.0.13:8080 web-4=tcp:10.244.0.14:8080 \
        cart-1=tcp:10.244.0.21:8080 cart-2=tcp:10.244.0.22:8080 \
        dns-1=udp:10.244.0.31:53 dns-2=udp:10.244.0.32:53 >"$work/pods" 2>&1 &
    jobs=$!
    until_so 30 "eight pods listen" grep -q ready "$work/pods"
}

# --- asking ---

# answers PROTOCOL ADDRESS PORT COUNT: asks from the client, shows who answered, and keeps that in $work/answers.
answers() {
    say "" "   the client asks $2 port $3 ($1), $4 x; who answered, and how often:"
    on_client $python "$here/talk.py" ask "$@" >"$work/answers" || fail "the client could not ask"
    bars <"$work/answers" | indent
}
bars() {
    awk '/^nobody|^refused/ { sub(/ [0-9]+$/, ""); print; next }
         { bar = ""; count = $NF; sub(/ [0-9]+$/, "")
           for (i = 0; i < count; i++) bar = bar "#"; printf "%-8s %-14s %d\n", $0, bar, count }'
}
# many COUNT: how often to ask for COUNT answers in turn. Where the kernel draws lots, often enough for everybody's.
many() { case "$kind" in nftables | iptables) echo 60 ;; *) echo "$1" ;; esac; }
# shared NAME...: these and nobody else have answered; where they take turns, none more than once oftener than another.
shared() {
    said=$(awk '{ print $1 }' "$work/answers" | sort | tr '\n' ' ')
    [ "$said" = "$* " ] || fail "answered have: ${said:-nobody }but should have: $*"
    case "$kind" in nftables | iptables) return ;; esac
    awk 'NR == 1 { least = most = $NF } $NF < least { least = $NF } $NF > most { most = $NF }
         END { exit most - least > 1 }' "$work/answers" || fail "the shares differ: $(tr '\n' ' ' <"$work/answers")"
}

# What the kernel, or the process, has of the proxy's, as the field's tools print it.
held() {
    case "$kind" in
    ipvs) on_node ipvsadm -Ln ;;
    nftables) on_node nft list table ip proxier ;;
    iptables) on_node iptables-save -t nat ;;
    userspace) on_node ip route show table local proto 118 && on_node ss -Hltunp ;;
    esac
}
# holds WORD COUNT: that many lines of it have this word.
holds() { [ "$(held | grep -c -e "$1")" -ge "$2" ]; }
# reaches ADDRESS PORT PROTOCOL POD...: these pods and no other answer.
reaches() {
    place="$3 $1 $2"
    shift 3
    on_client $python "$here/talk.py" ask $place "$(many $(($# * 2)))" >"$work/reached" || return 1
    [ "$(awk '{ print $1 }' "$work/reached" | sort | tr '\n' ' ')" = "$* " ]
}
# serves ADDRESS PORT PROTOCOL POD...: the kernel has these pods: as ipvsadm tells it, or by who answers.
serves() {
    if [ "$kind" = ipvs ]; then
        flag=-t address=$1 port=$2
        [ "$3" = tcp ] || flag=-u
        shift 3
        has_servers $flag "$address:$port" $#
    else
        reaches "$@"
    fi
}

# weight ADDRESS: the weight of web's real server, as ipvsadm tells it.
weight() { on_node ipvsadm -Ln -t $web:80 | awk -v real="$1:8080" '$2 == real { print $4 }'; }
weight_is() { [ "$(weight "$1")" = "$2" ]; }
is_gone() { [ -z "$(weight "$1")" ] && on_node ipvsadm -Ln -t $web:80; }
has_servers() { [ "$(on_node ipvsadm -Ln "$1" "$2" | grep -c -e '->.*Masq')" -eq "$3" ]; }
open_connections() { on_node ipvsadm -Ln -t $web:80 | awk -v real="$1:8080" '$2 == real { print $5 }'; }
healthy() { on_node busybox wget -q -O - http://127.0.0.1:10256/healthz | grep -q '"healthy":true'; }
table() {
    case "$kind" in
    nftables)
        typed "nft list map ip proxier endpoints"
        on_node nft list map ip proxier endpoints >"$work/table" || fail "nft failed"
        indent <"$work/table"
        return ;;
    iptables)
        typed "iptables-save -t nat | grep shop/web"
        on_node iptables-save -t nat | grep shop/web >"$work/table" || fail "no rules of shop/web"
        indent <"$work/table"
        return ;;
    userspace)
        typed "ip route show table local proto 118"
        on_node ip route show table local proto 118 >"$work/table" || fail "ip failed"
        indent <"$work/table"
        return ;;
    esac
    typed "proxier-demo show"
    on_node "$proxy" show --manifests "$manifests" --hostname-override demo-node >"$work/table" || fail "show failed"
    indent <"$work/table"
}
last_pass() { sed -n 's/.* \(pass: \)/\1/p' "$work/log" | tail -n 1; }
# edit SED-EXPRESSION: changes web.yaml, whole or not at all.
edit() {
    typed "sed -i '$1' web.yaml"
    sed "$1" "$manifests/web.yaml" >"$manifests/.new" || fail "sed"
    ! cmp -s "$manifests/web.yaml" "$manifests/.new" || fail "the edit changes nothing"
    mv "$manifests/.new" "$manifests/web.yaml" || fail "mv"
}

# --- the story ---

title=$(case "$kind" in ipvs) echo IPVS ;; auto) echo "The best" ;; *) echo "$kind" ;; esac)
say "$title mode on Linux $(uname -r): a client, a node and eight pods, each side in a network namespace of its own." \
    "" \
    "   client                        node                          pods" \
    "   192.168.50.2 ---------------- 192.168.50.1" \
    "                                 10.244.0.1 ------------------ 10.244.0.11 to .14  web" \
    "                                 proxier-demo runs here        10.244.0.21, .22    cart" \
    "                                                               10.244.0.31, .32    dns"
case "$kind" in
ipvs) who="the kernel's load balancer, IPVS, to" ;;
userspace) who="nobody: it listens there itself, to" ;;
*) who="the kernel's packet filter to" ;;
esac
step "The proxy starts" \
    "A Kubernetes Service has an address that no machine owns. The proxy tells $who" \
    "take what is sent there and to send it on to a pod. It reads Services and their endpoints; here from files." ""
cp -r "$here/manifests" "$manifests" || fail "cannot copy the manifests"
network
typed "proxier-demo run --proxy-mode $asked --manifests $manifests --hostname-override demo-node --cluster-cidr 10.244.0.0/16"
fallback=--no-fallback
[ "$asked" != auto ] || fallback=
ip netns exec node "$proxy" run --proxy-mode "$asked" $fallback --manifests "$manifests" --hostname-override demo-node \
    --cluster-cidr 10.244.0.0/16 --conntrack-max-per-core 0 --oom-score-adj 0 --v 4 >"$work/log" 2>&1 &
proxy_pid=$!
until_so 60 "/healthz says that the proxy is well" healthy
if [ "$asked" = auto ]; then
    kind=$(on_node busybox wget -q -O - http://127.0.0.1:10249/proxyMode) || fail "no /proxyMode"
    ok "the best mode that this machine can do is $kind"
    say "   the proxy's log: $(sed -n 's/.* \(mode [a-z]*: \)/\1/p' "$work/log" | head -n 1)"
fi
until_so 60 "the kernel has web, with its three pods" serves $web 80 tcp web-1 web-2 web-3
if [ "$kind" = ipvs ]; then
    until_so 10 "the kernel has cart" has_servers -t $cart:80 2
fi
until_so 10 "the kernel has kube-dns" serves $dns 53 udp dns-1 dns-2
case "$kind" in
ipvs)
    on_node ip -4 -brief address show dev kube-ipvs0 | grep -q "$web/32" || fail "$web is not on kube-ipvs0"
    ok "the Services' addresses are on the device kube-ipvs0, so the kernel takes their packets"
    say "" "   One virtual server for each address and port; below it its real servers, the pods:" ;;
nftables) say "" "   Services are elements of maps, and so are their endpoints:" ;;
iptables) say "" "   One chain for each Service, and one for each endpoint:" ;;
userspace) say "" "   The Services' addresses are local by routes, so that this process can listen there:" ;;
esac
table
case "$kind" in
ipvs) grep -q "$web:80.*shop/web" "$work/table" || fail "show does not name the Service of $web:80" ;;
nftables) grep -q "10.244.0.11" "$work/table" || fail "nft does not show web-1" ;;
iptables) grep -q "10.244.0.11:8080" "$work/table" || fail "iptables-save does not show web-1" ;;
userspace) grep -q "$web" "$work/table" || fail "ip does not show $web" ;;
esac
ok "the table has them"

if [ "$mode" = --shell ]; then
    say "" "You are on the node. Try:" \
        "   ipvsadm -Ln; nft list ruleset; iptables-save            what the kernel has" \
        "   \$proxy show --manifests \$manifests --hostname-override demo-node" \
        "   ip netns exec client curl http://$web/                 a request of the client" \
        "   vi \$manifests/web.yaml                                 the proxy follows" \
        "   tail \$log                                              what it did" \
        "exit leaves." ""
    proxy=$(realpath "$proxy") manifests=$manifests log=$work/log PS1='node# ' ip netns exec node bash --norc -i
    exit 0
fi

case "$kind" in
ipvs) how="IPVS hands each new connection to the next pod, in turn (scheduler rr)." ;;
userspace) how="The proxy hands each new connection to the next pod, in turn." ;;
*) how="The kernel draws lots for each new connection." ;;
esac
step "Traffic" "$how"
[ "$kind" = userspace ] || say "   The kernel does it: no packet and no connection passes through the proxy's process."
answers tcp $web 80 "$(many 12)"
shared web-1 web-2 web-3
ok "each pod has its part of the connections"
say "" "   From outside of the cluster: the same pods, at port 30080 of the node itself."
answers tcp $node_address 30080 "$(many 6)"
shared web-1 web-2 web-3
ok "the node port leads to the same pods"
say "" "   UDP, as for DNS:"
answers udp $dns 53 "$(many 6)"
shared dns-1 dns-2
ok "datagrams are shared out too"
say "" "   Session affinity: Service cart wants each client to stay with one pod."
answers tcp $cart 80 6
[ "$(wc -l <"$work/answers")" -eq 1 ] && grep -q '^cart-[12] 6$' "$work/answers" || fail "more than one pod has answered"
ok "one pod has answered all six"

step "Scaling" \
    "A fourth pod is added to the endpoints. The proxy sends the kernel just that change."
edit '/# web-3$/a - {addresses: [10.244.0.14], conditions: {ready: true}, nodeName: demo-node} # web-4'
until_so 30 "the kernel has web-4" serves $web 80 tcp web-1 web-2 web-3 web-4
say "   the proxy's log: $(last_pass)"
answers tcp $web 80 "$(many 12)"
shared web-1 web-2 web-3 web-4
ok "the new pod has its share"

step "Draining under load" \
    "A client keeps a connection to web-1 and uses it ten times a second. Then web-1 is taken out of the endpoints." \
    "The proxy must not cut that connection, but nothing new may go there."
touch "$work/held"
ip netns exec client $python "$here/talk.py" hold $web 80 web-1 "$work/held" 2>"$work/held.error" &
holder=$!
jobs="$jobs $holder"
until_so 30 "the connection to web-1 is open and answers" test -s "$work/held.answers"
edit '/# web-1$/d'
if [ "$kind" = ipvs ]; then
    until_so 30 "web-1 has weight 0 in the kernel" weight_is 10.244.0.11 0
else
    until_so 30 "web-1 is out of the rotation" reaches $web 80 tcp web-2 web-3 web-4
fi
before=$(cat "$work/held.answers")
answers tcp $web 80 "$(many 12)"
shared web-2 web-3 web-4
ok "no new connection goes to web-1"
more_answers() { [ "$(cat "$work/held.answers")" -gt $((before + 5)) ]; }
until_so 30 "the old connection still answers" more_answers
if [ "$kind" = ipvs ]; then
    [ "$(open_connections 10.244.0.11)" -ge 1 ] || fail "ipvsadm shows no open connection of web-1"
    ok "ipvsadm counts it: $(open_connections 10.244.0.11) open at web-1"
    say "" "   WEIGHT 0 and still ACTIVE: that is a pod which drains."
    table
fi
rm "$work/held"
wait "$holder" || fail "the held connection broke: $(cat "$work/held.error")"
jobs=${jobs% *}
ok "the client has closed it itself, after $(cat "$work/held.answers") answers"

step "Failover" \
    "web-2 fails its readiness probe: its endpoint says ready: false. It is not gone, but gets nothing new."
edit '/# web-2$/s/ready: true/ready: false/'
no_new_for() { is_gone "$1" || weight_is "$1" 0; }
if [ "$kind" = ipvs ]; then
    until_so 30 "web-2 is out of the rotation" no_new_for 10.244.0.12
else
    until_so 30 "web-2 is out of the rotation" reaches $web 80 tcp web-3 web-4
fi
say "   the proxy's log: $(last_pass)"
answers tcp $web 80 "$(many 12)"
shared web-3 web-4
ok "the others have taken over, and no request was lost"
if [ "$kind" = ipvs ]; then
    until_so 90 "web-1, drained, is deleted from the kernel now that it has no connection left" is_gone 10.244.0.11
fi
edit '/# web-2$/s/ready: false/ready: true/'
until_so 30 "web-2 is ready again and back in the rotation" serves $web 80 tcp web-2 web-3 web-4
answers tcp $web 80 "$(many 12)"
shared web-2 web-3 web-4
ok "it has its share again"
table

if [ "$kind" = userspace ]; then
    step "The proxy ends" "In this mode, Services end with the process. Open connections get 20 s."
    kill -TERM "$proxy_pid"
    wait "$proxy_pid" || fail "the proxy ended with code $?"
    ok "the proxy has ended"
    answers tcp $web 80 1
    ! grep -q web "$work/answers" || fail "a pod has answered"
    ok "nobody answers any more"
else
    step "The proxy ends, the traffic does not" \
        "What the proxy has told the kernel stays when the process ends, so that it can be replaced on a live node."
    kill -TERM "$proxy_pid"
    wait "$proxy_pid" || fail "the proxy ended with code $?"
    ok "the proxy has ended"
    answers tcp $web 80 "$(many 6)"
    shared web-2 web-3 web-4
    ok "the Service still works"
fi

step "Clean-up" \
    "One command takes everything away that the proxy has made, in whatever mode."
# traces KIND: what of the proxy's work the tool for that kind still shows.
traces() {
    case "$1" in
    servers) on_node ipvsadm -Sn ;;
    devices) on_node ip -brief link show type dummy ;;
    # KUBE-FIREWALL is the kubelet's.
    rules) on_node iptables-save | grep KUBE | grep -v KUBE-FIREWALL ;;
    rules6) on_node ip6tables-save | grep KUBE | grep -v KUBE-FIREWALL ;;
    tables) on_node nft list tables | grep proxier ;;
    routes) on_node ip route show table local proto 118 ;;
    esac 2>/dev/null
}
case "$kind" in
ipvs) kinds="servers devices tables" ;;
nftables) kinds=tables ;;
iptables) kinds="rules rules6" ;;
userspace) kinds=routes ;;
esac
# A tool that shows nothing now would show nothing afterwards either.
for what in $kinds; do
    [ -n "$(traces "$what")" ] || fail "no $what to be seen before the clean-up"
done
typed "proxier-demo cleanup"
on_node "$proxy" cleanup >"$work/cleaned" 2>&1 || fail "cleanup: $(cat "$work/cleaned")"
indent <"$work/cleaned"
for what in $kinds; do
    left=$(traces "$what")
    [ -z "$left" ] || fail "$what are left: $left"
done
ok "nothing is left of it ($kinds)"
proxy_pid=
answers tcp $web 80 1
! grep -q web "$work/answers" || fail "a pod has answered"
ok "and nobody answers at $web any more"
say "" "All $checks checks held. cargo xtask demo --shell leaves you on the node, to try for yourself."
[ "$mode" != --check ] || echo "demo: ok, $checks checks"
