#!/bin/bash
# Runs once, as root, when the notebook is created: puts build-env.sh onto its volume. All else is on-start.sh's, which follows.
# DESTDIR is for trials: a folder that stands for /.
set -euo pipefail
home=${DESTDIR-}/home/ec2-user

# As ec2-user: root must not write where somebody else may have put a link.
sudo -u ec2-user mkdir -p "$home/SageMaker/.gluonlab"
sudo -u ec2-user tee "$home/SageMaker/.gluonlab/build-env.sh" >/dev/null <<'END_OF_BUILD_ENV'
#!/bin/bash
# The environment of gluonlab on the notebook's own volume, which alone survives a stop: makes it, mends it, or finds it ready.
#
# on-start.sh runs this in the background at every start, as ec2-user; by hand it is the way to try again:
#     bash ~/SageMaker/.gluonlab/build-env.sh
# In ~/SageMaker appear gluonlab-setup.log and one of gluonlab-BUILDING.txt, gluonlab-READY.txt, gluonlab-FAILED.txt.
# GLUONLAB_REPOSITORY (a git address) or GLUONLAB_BUCKET (gluonlab/source.tar.gz in it) says where the checkout comes from.
set -Eeuo pipefail

shown=${HOME:?}/SageMaker
state=$shown/.gluonlab
env=$state/env
checkout=$shown/gluonlab-source # a folder named gluonlab would hide the package from whoever works beside it
log=$shown/gluonlab-setup.log
mkdir -p "$state"

exec 9>"$state/lock"
flock --nonblock 9 || { echo "another build is running: see $log"; exit 0; }
exec > >(exec 9>&-; exec tee -a "$log") 2>&1
export PYTHONNOUSERSITE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 TMPDIR=$state/tmp
# What was given last time serves a build that is started by hand.
if [ -n "${GLUONLAB_REPOSITORY-}${GLUONLAB_BUCKET-}" ]; then
  declare -p GLUONLAB_REPOSITORY GLUONLAB_BUCKET >"$state/settings" 2>/dev/null || true
elif [ -f "$state/settings" ]; then
  # shellcheck disable=SC1091
  . "$state/settings"
fi

say() { echo "$(date '+%F %T') $*"; }

mark() {
  rm -f "$shown"/gluonlab-{BUILDING,READY,FAILED}.txt
  printf '%s\n' "${@:2}" >"$shown/gluonlab-$1.txt"
  say "$1: $2"
}

doing="getting ready"
failed() {
  trap - ERR EXIT
  mark FAILED "$1" "Try again in a terminal: bash $state/build-env.sh"
  exit 1
}
# Not ERR alone: an unset variable ends a shell without it.
trap 'failed "$doing failed with status $?: the lines above this one in gluonlab-setup.log say why"' ERR EXIT
trap 'failed "$doing was interrupted"' HUP INT TERM

building() {
  mark BUILDING "gluonlab is being installed since $(date '+%F %T'): 10 to 20 minutes the first time" "Follow it: tail -f $log"
}

fetch() {
  [ -f "$checkout/setup.py" ] && return
  building
  doing="fetching the checkout of gluonlab"
  rm -rf "$checkout.part"
  if [ -n "${GLUONLAB_REPOSITORY-}" ]; then
    say "$doing from $GLUONLAB_REPOSITORY"
    git clone --quiet --depth 1 -- "$GLUONLAB_REPOSITORY" "$checkout.part"
  elif [ -n "${GLUONLAB_BUCKET-}" ]; then
    say "$doing from s3://$GLUONLAB_BUCKET/gluonlab/source.tar.gz"
    mkdir "$checkout.part"
    aws s3 cp --only-show-errors "s3://$GLUONLAB_BUCKET/gluonlab/source.tar.gz" - | tar -xz -C "$checkout.part"
  else
    failed "no checkout in $checkout, and neither a repository nor a bucket to fetch it from: clone or upload it there"
  fi
  [ -f "$checkout.part/setup.py" ] || failed "$doing gave no setup.py: is that the repository of gluonlab?"
  [ ! -e "$checkout" ] || failed "$checkout exists and is no checkout of gluonlab: move it away"
  mv "$checkout.part" "$checkout"
}

# What nvidia-smi finds decides over the environment; without GPUs two CPU devices stand in for them.
gpus() { nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ' || true; }
flavour() { if nvidia-smi >/dev/null 2>&1; then echo cu112; else echo cpu; fi; }

# What the environment depends on: an editable install follows changes of the code by itself.
wanted() { { flavour; cat "$checkout/setup.py" "$checkout/tools/make_venv.py"; } | sha256sum | cut -c1-64; }

install() {
  local kind least_gib free_gib
  kind=$(flavour)
  doing="making a Python environment with conda"
  # The notebook may have been given another kind of machine: the two builds of MXNet share a folder, and spoil each other in it.
  if [ "$(cat "$env/.flavour" 2>/dev/null)" != "$kind" ] || ! "$env/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$env"
    least_gib=4
    [ "$kind" = cpu ] || least_gib=12
    free_gib=$(($(df --output=avail --block-size=1M "$state" | tail -1) / 1024))
    [ "$free_gib" -ge "$least_gib" ] ||
      failed "$free_gib GiB are free in $shown and $least_gib are needed: make room, or stop the notebook and give it a larger volume"
    say "$doing"
    PATH=$PATH:$HOME/anaconda3/bin conda create --yes --quiet --prefix "$env" --override-channels --channel conda-forge python=3.11 pip
    echo "$kind" >"$env/.flavour"
  fi
  doing="installing gluonlab[$kind,labs] from $checkout"
  say "$doing"
  # pip install gluonlab[...], and what pip alone cannot: opencv without libGL, MXNet whichever numpy it asks for.
  "$env/bin/python" "$checkout/tools/make_venv.py" "$env" "$kind" labs
}

show() {
  doing="registering the Jupyter kernel"
  # Below ~, which a stop of the notebook empties: hence at every start. Data sets are kept, too, where gluonlab looks for them.
  "$env/bin/python" -m ipykernel install --user --name gluonlab --display-name "gluonlab (MXNet)" >/dev/null
  mkdir -p "$shown/gluonlab-data" "$HOME/.cache"
  [ -e "$HOME/.cache/gluonlab" ] || ln -sfn "$shown/gluonlab-data" "$HOME/.cache/gluonlab"
  if [ -d "$checkout/labs" ]; then ln -sfn "$checkout/labs" "$shown/gluonlab-labs"; fi
}

main() {
  rm -rf "$state/tmp" # of a build that was cut off
  mkdir "$state/tmp"
  fetch
  if [ "$(cat "$state/installed" 2>/dev/null)" != "$(wanted)" ] || ! "$env/bin/python" -c '' 2>/dev/null; then
    rm -f "$state/installed"
    building
    install
    wanted >"$state/installed"
  fi
  show
  rm -rf "$state/tmp"
  devices=$(gpus)
  trap - ERR EXIT
  mark READY "choose the kernel 'gluonlab (MXNet)', or in a terminal: $env/bin/python -m gluonlab.run --gpus ${devices/#0/2}"
}

main
END_OF_BUILD_ENV
