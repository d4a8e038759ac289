#!/usr/bin/env bash
# Builds the image's CPU variant, runs its main job as its own user, and ends another one with SIGTERM.
#
#   tools/image/image_test.sh            docker or podman where an engine runs; else buildah, as root, on a Debian base
#   ENGINE=buildah tools/image/image_test.sh
#   BASE=docker.io/library/debian:bookworm-slim     what docker and podman start from
#   PACKAGES="openssh-client openssh-server"        more Debian packages, as in the Dockerfile
#
# Everything it makes lies in a temporary folder, or has a name of its own, and is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."

NAME="commbench-image-test-$$"
IMAGE="localhost/$NAME:cpu"
BASE="${BASE:-docker.io/library/debian:bookworm-slim}"
SHORT=(timing=quick "sizes=[8,1KiB]" "label=image test")
SOAK=(timing=soak timing.duration_s=120 benchmark=p2p_latency "sizes=[8]")
USER_ID=10001
WORK="$(mktemp -d "${TMPDIR:-/tmp}/$NAME.XXXX")"
chmod 755 "$WORK" # the container's user passes through it

say() { printf 'image test: %s\n' "$*"; }
fail() {
    printf 'image test: FAILED: %s\n' "$*" >&2
    exit 1
}
bounded() { timeout -k 10 "$@"; }
works() { bounded 20 "$1" info --format x >/dev/null 2>&1; }

engine() {
    local one
    for one in ${ENGINE:-docker podman buildah}; do
        command -v "$one" >/dev/null || continue
        if [ "$one" = buildah ] || works "$one"; then
            printf '%s' "$one"
            return
        fi
    done
    fail "no docker or podman engine answers, and there is no buildah; apt-get install buildah debootstrap, or ENGINE="
}

# ---------------------------------------------------------------- docker and podman

engine_build() {
    bounded 2400 "$ENGINE" build --build-arg VARIANT=cpu --build-arg BASE="$BASE" --build-arg PACKAGES="${PACKAGES:-}" \
        -t "$IMAGE" .
    "$ENGINE" volume create "$NAME" >/dev/null
}
engine_run() { bounded 300 "$ENGINE" run --rm -v "$NAME:/results" "$IMAGE" "$@"; }
engine_shell() { bounded 60 "$ENGINE" run --rm -v "$NAME:/results" --entrypoint sh "$IMAGE" -c "$1"; }
engine_size() { "$ENGINE" image inspect --format '{{.Size}}' "$IMAGE"; }
engine_soak() { "$ENGINE" run --detach --name "$NAME" -v "$NAME:/results" "$IMAGE" "${SOAK[@]}" >/dev/null; }
engine_terminate() {
    "$ENGINE" kill --signal TERM "$NAME" >/dev/null
    bounded 30 "$ENGINE" wait "$NAME"
}
engine_clean() {
    "$ENGINE" rm --force "$NAME" >/dev/null 2>&1 || true
    "$ENGINE" volume rm --force "$NAME" >/dev/null 2>&1 || true
    "$ENGINE" image rm --force "$IMAGE" >/dev/null 2>&1 || true
}

# ---------------------------------------------------------------- buildah, without an engine or a registry

driver() { # overlay, or copies of every layer where this file system has none
    local at="$WORK/probe"
    mkdir -p "$at"/{lower,upper,work,merged}
    if mount -t overlay overlay -o "lowerdir=$at/lower,upperdir=$at/upper,workdir=$at/work" "$at/merged" 2>/dev/null; then
        umount "$at/merged"
        printf overlay
    else
        printf vfs
    fi
}
b() { bounded "${LIMIT:-600}" buildah --storage-driver "$DRIVER" --root "$WORK/store" --runroot "$WORK/run" "$@"; }
debian() { # from the mirror that this machine's apt uses
    local release mirror
    # shellcheck source=/dev/null
    release="$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")"
    # shellcheck disable=SC2016 # apt's own variables
    mirror="$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | awk -v r="$release" '$2 == r {print $1; exit}')"
    say "debootstrap $release from $mirror"
    bounded 600 debootstrap --variant=minbase --include=ca-certificates "$release" "$WORK/debian" "$mirror" >"$WORK/log" ||
        { tail -20 "$WORK/log" >&2 && fail "debootstrap"; }
    rm -rf "$WORK/debian/var/cache/apt"/* "$WORK/debian/var/lib/apt/lists"/*
}
pip_settings() { # where this machine's pip finds packages, its folders too: a local torch build saves gigabytes
    local lines folder
    lines="$(python3 -m pip config list 2>/dev/null |
        sed -nE "s/^[^.]*\.(find-links|index-url|extra-index-url|cert)='(.*)'$/\1 = \2/p" | awk '!seen[$1]++' || true)"
    printf '[global]\n%s\n' "$lines" >"$WORK/pip.conf"
    printf '%s\n%s\n' /etc/ssl/certs "$WORK/pip.conf:/etc/pip.conf"
    for folder in $(grep -E '^(find-links|index-url|extra-index-url)' "$WORK/pip.conf" | tr ' ' '\n' |
        sed -nE 's#^(file://)?(/.*)#\2#p' | sed -E 's#/simple/?$##'); do
        [ -d "$folder" ] && printf '%s\n' "$folder"
    done
}
buildah_build() {
    local mounts=() mount container index=(--build-arg CPU_INDEX=)
    [ "$(id -u)" = 0 ] || fail "buildah's chroot isolation and debootstrap need root; or start docker or podman"
    command -v debootstrap >/dev/null || fail "no debootstrap; apt-get install debootstrap"
    DRIVER="$(driver)"
    say "buildah with $DRIVER"
    debian
    container="$(b from scratch)"
    b add --quiet "$container" "$WORK/debian" / >/dev/null
    b commit --quiet --rm "$container" localhost/base:debian >/dev/null
    rm -rf "$WORK/debian"
    while read -r mount; do
        [ "${mount#*:}" = "$mount" ] && mount="$mount:$mount"
        mounts+=(-v "$mount:ro")
    done < <(pip_settings)
    grep -q '^find-links' "$WORK/pip.conf" || index=()
    LIMIT=2400 b bud --isolation chroot --network host --pull-never "${mounts[@]}" "${index[@]}" \
        --build-arg VARIANT=cpu --build-arg BASE=localhost/base:debian --build-arg PACKAGES="${PACKAGES:-}" \
        -t "$IMAGE" .
    CONTAINER="$(b from --pull-never "$IMAGE")"
    read -ra ENTRY <<<"$(b inspect --format '{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}' "$CONTAINER")"
}
inside() { b run --isolation chroot --network host "$CONTAINER" -- "$@"; } # as the image's user, in its volume
buildah_run() { inside timeout -k 10 300 "${ENTRY[@]}" "$@"; }
buildah_shell() { inside timeout -k 10 60 sh -c "$1"; }
buildah_size() { b images --format '{{.Size}}' "$IMAGE"; }
buildah_soak() { # processes are the host's here: the first one's number is enough to signal it
    {
        local status=0
        # shellcheck disable=SC2016 # for the shell inside
        inside sh -c 'echo $$ >/results/first && exec timeout -k 10 200 "$@"' sh "${ENTRY[@]}" "${SOAK[@]}" \
            >"$WORK/soak" 2>&1 || status=$?
        printf '%s\n' "$status" >"$WORK/status"
    } &
}
buildah_terminate() {
    kill -TERM "$(pgrep -P "$(buildah_shell 'cat /results/first')" tini)"
    bounded 60 sh -c "until [ -s '$WORK/status' ]; do sleep 0.2; done"
    cat "$WORK/status"
}
buildah_clean() {
    [ -z "${DRIVER:-}" ] || b rm --all >/dev/null 2>&1 || true
    # the overlay driver mounts its folder upon itself; a debootstrap that was interrupted leaves these
    local left
    for left in store/overlay debian/proc debian/sys; do
        while umount "$WORK/$left" 2>/dev/null; do :; done
    done
}

# ---------------------------------------------------------------- the test

clean() {
    local status=$?
    [ -z "${ENGINE_KIND:-}" ] || "${ENGINE_KIND}_clean"
    rm -rf --one-file-system "$WORK"
    say "cleaned up after $SECONDS s"
    exit "$status"
}
main_job() {
    local began=$SECONDS status=0 found
    "${ENGINE_KIND}_run" "${SHORT[@]}" || status=$?
    [ "$status" = 0 ] || fail "the main job left with status $status"
    found="$("${ENGINE_KIND}_shell" 'ls -n /results/*/cases.parquet /results/*/samples.parquet /results/*/run.json')"
    say "main job: status 0 after $((SECONDS - began)) s; in the volume:"
    printf '%s\n' "$found"
    [ "$(awk -v u="$USER_ID" '$3 == u' <<<"$found" | wc -l)" = 3 ] || fail "files of user $USER_ID were expected"
}
termination() {
    local began tries=0 status=0
    "${ENGINE_KIND}_soak"
    until "${ENGINE_KIND}_shell" 'ls /results/*/parts/*.parquet' >/dev/null 2>&1; do # it measures
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || fail "the soak wrote nothing"
        sleep 1
    done
    began=$SECONDS
    status="$("${ENGINE_KIND}_terminate")"
    say "SIGTERM: status $status after $((SECONDS - began)) s"
    [ "$status" = 143 ] || fail "143 was expected"
    [ $((SECONDS - began)) -le 15 ] || fail "it took longer than 15 s"
}
main() {
    ENGINE="$(engine)"
    case "$ENGINE" in buildah) ENGINE_KIND=buildah ;; *) ENGINE_KIND=engine ;; esac
    say "with $ENGINE, in $WORK"
    "${ENGINE_KIND}_build"
    say "built after $SECONDS s; size $("${ENGINE_KIND}_size")"
    [ "$("${ENGINE_KIND}_shell" 'id -u')" = "$USER_ID" ] || fail "the image's user is not $USER_ID"
    "${ENGINE_KIND}_run" doctor
    main_job
    termination
    say "passed"
}

trap clean EXIT
main
