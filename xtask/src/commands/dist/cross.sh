# cross.sh ROOT SOURCE HOME COMMAND...: runs COMMAND in the Debian root ROOT, with the source and cargo's home at their own paths.
# Called in a mount namespace of its own, with which the mounts go.
set -eu
root=$1 source=$2 home=$3
shift 3
for folder in "$source" "$home" /proc; do
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
done
exec chroot "$root" sh -c 'cd "$0" && exec "$@"' "$source" "$@"
