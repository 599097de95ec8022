#!/bin/bash
# The environment of gluonlab on the notebook's own volume, which alone survives a stop: makes it, mends it, or finds it ready.
#
# on-start.sh runs this in the background at every start, as ec2-user; by hand it tries again, or gets a newer gluonlab:
#     bash ~/SageMaker/.gluonlab/build-env.sh
#     bash ~/SageMaker/.gluonlab/build-env.sh --update
# In ~/SageMaker appear gluonlab-setup.log and one of gluonlab-BUILDING.txt, gluonlab-READY.txt, gluonlab-FAILED.txt.
# GLUONLAB_REPOSITORY (a git address) or GLUONLAB_BUCKET (gluonlab/source.tar.gz in it) says where the checkout comes from;
# ~/SageMaker/.gluonlab/environment may set these, a proxy, a package index: one NAME=VALUE a line.
set -Eeuo pipefail

shown=${HOME:?}/SageMaker
state=$shown/.gluonlab
checkout=$shown/gluonlab-source # a folder named gluonlab would hide the package from whoever works beside it
labs=$shown/gluonlab-labs
log=$shown/gluonlab-setup.log
[ -z "$*" ] || [ "$*" = --update ] || { echo "error: $*: pass --update or nothing"; exit 2; }
newest=$checkout/sagemaker/build-env.sh # knows best what its version needs
if [ -f "$newest" ] && ! [ "$newest" -ef "$0" ]; then exec bash "$newest" "$@"; fi
mkdir -p "$state"

exec 9>"$state/lock"
flock --nonblock 9 || { echo "another build is running: see $log"; exit 0; }
exec 3>&1 > >(exec 9>&-; exec tee -a "$log") 2>&1

say() { echo "$(date '+%F %T') $*"; }

mark() {
  rm -f "$shown"/gluonlab-{BUILDING,READY,FAILED}.txt
  printf '%s\n' "${@:2}" >"$shown/gluonlab-$1.txt"
  say "$1: $2"
}

updating=
doing="getting ready"
failed() {
  trap - ERR EXIT
  if [ -n "$updating" ]; then
    say "not updated, nothing was changed: $1"
  else
    mark FAILED "$1" "Try again in a terminal: bash $state/build-env.sh"
  fi
  exit 1
}
# Not ERR alone: an unset variable ends a shell without it.
trap 'failed "$doing failed with status $?: see the lines above in gluonlab-setup.log"' ERR EXIT
trap 'failed "$doing was interrupted"' HUP INT TERM

settings() {
  local file
  set -a
  for file in "${DESTDIR-}/opt/gluonlab/environment" "$state/environment"; do
    doing="reading $file"
    # shellcheck disable=SC1090
    [ ! -f "$file" ] || . "$file"
  done
  set +a
  export PYTHONNOUSERSITE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 TMPDIR=$state/tmp
}

building() {
  mark BUILDING "gluonlab is being installed since $(date '+%F %T'): 10 to 20 minutes the first time" "Follow it: tail -f $log"
}

from_bucket() {
  doing="fetching the checkout of gluonlab"
  say "$doing from s3://$GLUONLAB_BUCKET/gluonlab/source.tar.gz"
  rm -rf "$checkout.part"
  mkdir "$checkout.part"
  aws s3 cp --only-show-errors "s3://$GLUONLAB_BUCKET/gluonlab/source.tar.gz" - | tar -xz -C "$checkout.part"
  [ -f "$checkout.part/setup.py" ] || failed "$doing: setup.py is missing: check the source of gluonlab"
}

fetch() {
  [ -f "$checkout/setup.py" ] && return
  building
  [ ! -e "$checkout" ] || failed "$checkout exists, but is not a checkout of gluonlab: move it away"
  if [ -n "${GLUONLAB_REPOSITORY-}" ]; then
    doing="fetching the checkout of gluonlab"
    say "$doing from $GLUONLAB_REPOSITORY"
    rm -rf "$checkout.part"
    git clone --quiet --depth 1 -- "$GLUONLAB_REPOSITORY" "$checkout.part"
    [ -f "$checkout.part/setup.py" ] || failed "$doing: setup.py is missing: check the repository of gluonlab"
  elif [ -n "${GLUONLAB_BUCKET-}" ]; then
    from_bucket
  else
    failed "$checkout is missing, and neither a repository nor a bucket is set: clone or upload it there"
  fi
  mv "$checkout.part" "$checkout"
}

# A newer checkout. git refuses where it would overwrite what somebody has changed; a folder from the bucket is put aside.
update() {
  [ -f "$checkout/setup.py" ] || return 0 # fetch brings the newest
  updating=yes
  doing="updating $checkout"
  say "$doing"
  if [ -e "$checkout/.git" ]; then
    git -C "$checkout" pull --quiet --ff-only ${GLUONLAB_REPOSITORY:+"$GLUONLAB_REPOSITORY"}
  elif [ -n "${GLUONLAB_BUCKET-}" ]; then
    from_bucket
    local before
    before=$checkout-before-$(date +%Y%m%d-%H%M%S)
    mv "$checkout" "$before"
    mv "$checkout.part" "$checkout"
    say "the old checkout is in $before; delete it if you do not need it"
  else
    failed "$checkout is not a git repository, and no bucket is set: copy a newer checkout there"
  fi
  rm -f "$state/labs"
  trap - ERR EXIT
  exec bash "$0" >&3 2>&1 3>&- 9>&- # the rest is the new version's
}

# The bus lists a GPU whether its driver answers or not; NVIDIA's other devices are no display controllers (class 03).
on_bus() {
  local device
  for device in "${DESTDIR-}"/sys/bus/pci/devices/*; do
    if [[ $(cat "$device"/{vendor,class} 2>/dev/null) == 0x10de$'\n'0x03* ]]; then echo "${device##*/}"; fi
  done
}

# Sets devices. Where a driver hangs, so does nvidia-smi, and may not even be killed: it must hold neither lock nor script.
await_driver() {
  local seconds=${GLUONLAB_DRIVER_SECONDS:-300} said=$state/tmp/nvidia-smi end asked
  doing="asking the driver of the GPUs"
  end=$((SECONDS + seconds))
  while :; do
    timeout -k 5 30 nvidia-smi --list-gpus >"$said" 2>&1 </dev/null 3>&- 9>&- &
    asked=$!
    while kill -0 "$asked" 2>/dev/null && [ "$SECONDS" -lt "$end" ]; do sleep 0.2; done
    if ! kill "$asked" 2>/dev/null && wait "$asked" && devices=$(grep -c '^GPU ' "$said"); then return; fi
    [ -n "${waiting-}" ] || mark BUILDING "waiting for the driver of the GPUs since $(date '+%F %T'): $seconds s at most"
    waiting=yes
    sleep 1
    [ "$SECONDS" -lt "$end" ] ||
      failed "the driver does not answer: nvidia-smi lists no GPU for $seconds s, and the bus $(on_bus | paste -sd ' ') ($(tail -1 "$said")). Nothing was changed. Stop and start the notebook"
  done
}

# What the environment depends on: an editable install follows changes of the code by itself.
wanted() { { echo "$kind"; cat "$checkout/setup.py" "$checkout/tools/make_venv.py"; } | sha256sum | cut -c1-64; }

runs() { "$env/bin/python" -m pip --version >/dev/null 2>&1; }

install() {
  local least_gib free_gib
  doing="creating a Python environment with conda"
  if ! runs; then
    # One that was whole once may hold files of its user; what is left of a first try holds none.
    if [ -e "$env/.installed" ]; then mv "$env" "$env.broken-$(date +%s)"; fi
    rm -rf "$env"
    least_gib=4
    [ "$kind" = cpu ] || least_gib=12
    free_gib=$(($(df --output=avail --block-size=1M "$state" | tail -1) / 1024))
    [ "$free_gib" -ge "$least_gib" ] ||
      failed "$free_gib GiB are free in $shown, but $least_gib are needed: free some space (du -sh $state/env-* lists environments), or stop the notebook and enlarge its volume"
    say "$doing"
    PATH=$PATH:$HOME/anaconda3/bin conda create --yes --quiet --prefix "$env" --override-channels \
      --channel "${GLUONLAB_CONDA_CHANNEL:-conda-forge}" python=3.11 pip
  fi
  doing="installing gluonlab[$kind,labs] from $checkout"
  say "$doing"
  # pip install gluonlab[...], and what pip alone cannot: opencv without libGL, MXNet whichever numpy it asks for.
  "$env/bin/python" "$checkout/tools/make_venv.py" "$env" "$kind" labs
}

# Notebooks ask for python3, so that any Jupyter opens them; here that must be the environment with gluonlab, too.
kernels() {
  local name places place install=(-m ipykernel install)
  doing="registering the Jupyter kernels"
  for name in {HTTP,HTTPS,NO}_PROXY {http,https,no}_proxy PIP_{INDEX_URL,EXTRA_INDEX_URL,TRUSTED_HOST,CERT} \
    {REQUESTS,AWS}_CA_BUNDLE SSL_CERT_FILE; do
    [ -z "${!name-}" ] || install+=(--env "$name" "${!name}")
  done
  # Below ~, which a stop of the notebook empties: hence at every start. A server that runs in an environment of its own may look
  # there first.
  places=(--user)
  place=$HOME/anaconda3/envs/JupyterSystemEnv
  [ ! -w "$place" ] || places+=("--prefix=$place")
  for place in "${places[@]}"; do
    "$env/bin/python" "${install[@]}" "$place" --name gluonlab --display-name "gluonlab (MXNet)" >/dev/null
    "$env/bin/python" "${install[@]}" "$place" --name python3 --display-name "Python 3 (gluonlab)" >/dev/null
  done
}

show() {
  kernels
  ln -sfn "${env##*/}" "$state/env"
  # Data sets are kept, too, where gluonlab looks for them.
  mkdir -p "$shown/gluonlab-data" "$HOME/.cache"
  [ -e "$HOME/.cache/gluonlab" ] || ln -sfn "$shown/gluonlab-data" "$HOME/.cache/gluonlab"
  # A copy, so that no update meets the answers in it. It is made when a lab is seen first, and overwrites nothing.
  local known
  known=$(cd "$checkout/labs" 2>/dev/null && echo */*.ipynb || true)
  if [ -n "$known" ] && { [ "$known" != "$(cat "$state/labs" 2>/dev/null)" ] || [ ! -e "$labs" ]; }; then
    if [ -L "$labs" ]; then rm "$labs"; fi # to the checkout's, whose answers are copied with it
    if "$env/bin/python" -m gluonlab labs "$labs"; then echo "$known" >"$state/labs"; else say "could not copy the labs"; fi
  fi
}

main() {
  settings
  rm -rf "$state/tmp" # of a build that was cut off
  mkdir "$state/tmp"
  [ "$*" != --update ] || update
  fetch
  # The two builds of MXNet share a folder and spoil each other in it: each has an environment of its own, and both stay.
  kind=cpu
  [ -z "$(on_bus)" ] || kind=cu112
  env=$state/env-$kind
  # That of an earlier gluonlab, which had one for both.
  if [ -d "$state/env" ] && [ ! -L "$state/env" ]; then mv "$state/env" "$state/env-$(cat "$state/env/.flavour")"; fi
  local ready=
  if [ "$(cat "$env/.installed" 2>/dev/null)" = "$(wanted)" ] && runs; then
    ready=yes
    show
  fi
  devices=2 # without GPUs two CPU devices stand in for them
  [ "$kind" = cpu ] || await_driver
  if [ -z "$ready" ]; then
    building
    if [ -e "$env/.installed" ]; then : >"$env/.installed"; fi
    install
    wanted >"$env/.installed"
    show
  fi
  rm -rf "$state/tmp"
  trap - ERR EXIT
  mark READY "reload this page and open a notebook in gluonlab-labs, or run in a terminal: $state/env/bin/python -m gluonlab.run --gpus $devices"
}

main "$@"
exit
