# Second stage, on the overlay: the file systems a program expects, then the command in /run/xtask/command.
# The command runs under the host's own shell: busybox prefers its applets to the programs of the same names.
# xtask puts assignments of `modules_release`, `network`, `interactive` and `share_0` and so on in front.
busybox=/run/busybox
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root USER=root LOGNAME=root TERM="${TERM:-linux}" LANG=C.UTF-8
fail() {
    echo "xtask: the machine cannot start: $1"
    $busybox poweroff -f
    $busybox sleep 60
}
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sysfs /sys
$busybox mkdir -p /dev/pts /dev/shm "/lib/modules/$modules_release"
$busybox mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
$busybox mount -t tmpfs tmpfs /dev/shm
for link in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
    $busybox ln -sfn "${link#*:}" "/dev/${link%%:*}"
done
$busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro modules "/lib/modules/$modules_release" ||
    fail "mounting the kernel's modules"
number=0
while eval "folder=\$share_$number" && [ -n "$folder" ]; do
    $busybox mkdir -p "$folder"
    $busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap,rw "share$number" "$folder" ||
        fail "mounting $folder"
    number=$((number + 1))
done
$busybox hostname testbed
$busybox ip link set lo up
if [ -n "$network" ]; then
    $busybox modprobe virtio_net 2>/dev/null || modprobe virtio_net
    device=$($busybox ls /sys/class/net | $busybox grep -v -e '^lo$' -e '^bonding_masters$' | $busybox head -n 1)
    $busybox ip link set "$device" up
fi
if [ "$network" = user ]; then
    $busybox ip addr add 10.0.2.15/24 dev "$device"
    $busybox ip route add default via 10.0.2.2
fi
if [ "$interactive" = true ]; then
    $busybox setsid $busybox cttyhack /bin/sh /run/xtask/command
    $busybox poweroff -f
    $busybox sleep 60
fi

# Ports of the virtio serial device, in the order in which QEMU was given them: 1 stdout, 2 stderr. The first number in
# /dev/vportXpY counts virtio devices of all kinds.
tries=0
while set -- /dev/vport*p2 && [ ! -c "$1" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || fail "no serial ports"
    $busybox usleep 20000
done
ports=${1%2}
# Pipes in between: a port can be opened only once, and programs do open /dev/stderr a second time.
$busybox mkfifo /run/out /run/err
$busybox cat /run/out >"${ports}1" &
out=$!
$busybox cat /run/err >"${ports}2" &
err=$!
/bin/sh /run/xtask/command </dev/null >/run/out 2>/run/err
code=$?
# The copies end when the last writer has closed its end. A daemon that the command left behind keeps it open: what it
# has written so far is copied by then.
running() {
    [ -r "/proc/$1/status" ] && ! $busybox grep -q '^State:[[:space:]]*Z' "/proc/$1/status"
}
tries=0
while running "$out" || running "$err"; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || break
    $busybox usleep 10000
done
echo "$code" >/run/xtask/exit
$busybox sync
$busybox poweroff -f
$busybox sleep 60
