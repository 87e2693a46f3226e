#!/bin/busybox sh
# First process of the virtual machine, in the small root file system that xtask made. It puts the host's root file
# system below a throw-away overlay and goes on there with stage2.sh.
export PATH=/bin
fail() {
    echo "xtask: the machine cannot start: $1"
    busybox poweroff -f
    busybox sleep 60
}
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
    busybox insmod "$module" || fail "loading $module"
done
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro root /lower || fail "mounting the host's root"
busybox mount -t tmpfs -o size=75% tmpfs /upper && busybox mkdir /upper/root /upper/work || fail "mounting a tmpfs"
busybox mount -t overlay -o lowerdir=/lower,upperdir=/upper/root,workdir=/upper/work overlay /newroot || fail "mounting the overlay"
# Nothing of the host's own kernel may show through.
for folder in proc sys dev run; do
    busybox mkdir -p /newroot/$folder
done
busybox mount -t tmpfs -o mode=755 tmpfs /newroot/run
busybox mkdir /newroot/run/xtask /newroot/run/lock
busybox cp /bin/busybox /newroot/run/ || fail "copying busybox"
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 run /newroot/run/xtask || fail "mounting the second stage"
busybox umount /proc
busybox mount --move /dev /newroot/dev
exec busybox switch_root -c /dev/console /newroot /run/busybox sh /run/xtask/stage2
