#!/usr/bin/env bash
# Trains ResNet-50 on ImageNet with ChainerMN and staging. Submit it in the top folder of the
# repository: sbatch examples/cluster/slurm.sh
#SBATCH --job-name=imagenet
#SBATCH --nodes=2
# One rank for each GPU.
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4
# The cores of a node, divided by its ranks: they are for the file readers.
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.txt
set -euo pipefail

# --- Adapt these, or set them in the environment. ----------------------------------------------
: "${DATA:=/lustre/$USER/imagenet}" # the images, train.txt, val.txt and mean.npy
: "${FAST:=}"                       # the node's own disk; empty: $SLURM_TMPDIR, $TMPDIR or /tmp
: "${CAPACITY:=90%}"                # how much of it may be used, by all ranks of the node
: "${VENV:=.venv}"                  # Python with Chainer, CuPy, mpi4py and overlapiter
: "${MPI:=pmix}"                    # how srun starts the site's MPI; srun --mpi=list shows it
: "${OUT:=result}"                  # the log and the snapshots
: "${ARCH:=resnet50}"
: "${BATCHSIZE:=64}" # of each rank
: "${EPOCHS:=90}"
: "${COMMUNICATOR:=pure_nccl}" # naive: on the CPU
: "${OPTIONS:=}"               # further ones of the training script, such as --seed 0
# module load cuda openmpi
# ------------------------------------------------------------------------------------------------

export FAST
export OMP_NUM_THREADS=1 # each core has a file reader already

read -ra options <<<"$OPTIONS"
mkdir -p "$OUT"
resume=()
snapshot=$(find "$OUT" -maxdepth 1 -name 'snapshot_iter_*.0' | sort -V | tail -n 1)
if [ -n "$snapshot" ]; then # this job continues an earlier one
    resume=(--resume "${snapshot%.0}")
fi

train=(
    "$VENV/bin/python" examples/imagenet/train_imagenet_chainermn.py
    "$DATA/train.txt" "$DATA/val.txt" --root "$DATA" --mean "$DATA/mean.npy"
    --communicator "$COMMUNICATOR" --arch "$ARCH" --batchsize "$BATCHSIZE" --epoch "$EPOCHS"
    --out "$OUT" --capacity "$CAPACITY" ${resume[@]+"${resume[@]}"} ${options[@]+"${options[@]}"}
)

# srun does not take the cores of a rank from sbatch. Without them each rank has a single one.
# All ranks see all GPUs of the node (no --gpus-per-task) and take that of their local rank.
# Each node looks for its own disk, so the shell below does, and not this one.
# shellcheck disable=SC2016
srun --mpi="$MPI" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --cpu-bind=cores --kill-on-bad-exit=1 \
    bash -c 'exec "$@" --staging "${FAST:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}}/overlapiter-$(id -un)"' \
    rank "${train[@]}"
