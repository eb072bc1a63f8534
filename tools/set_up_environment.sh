#!/usr/bin/env bash
# Make or update the virtual environment .venv: tools/set_up_environment.sh EXTRAS
#
# EXTRAS is the list of extras to install beside the package, e.g. "ray,data". Everything is
# installed under constraints.txt. An environment whose last set-up did not finish is made anew,
# because a package that was half written looks installed to pip.
set -euo pipefail

extras=$1
venv=.venv
unfinished=$venv/.set-up-unfinished

say() { printf '%s\n' "set-up: $*" >&2; }
die() {
    say "$*"
    exit 1
}

is_suitable() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

find_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        is_suitable "$PYTHON" ||
            die "PYTHON must be an interpreter of Python 3.11 to 3.14, got '$PYTHON'."
        printf '%s' "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do
        if is_suitable "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    die "found no Python 3.11 to 3.14 on PATH. Install one, or name it: make PYTHON=/path/to/python3.11 ..."
}

check_tools() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$1 cannot make virtual environments. Install its venv package (on Debian and Ubuntu: apt-get install python3-venv)."
    local header
    header=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
    [[ -e $header ]] ||
        die "the C headers of $1 are missing ($header). Install them (on Debian and Ubuntu: apt-get install python3-dev)."
    local compiler=${CXX:-}
    if [[ -z $compiler ]]; then
        compiler=$(command -v c++ || command -v g++ || command -v clang++) ||
            die "found no C++ compiler. Install one (on Debian and Ubuntu: apt-get install g++), or name it in CXX."
    fi
    # CXX may carry options ("ccache g++"), so it is split into words on purpose.
    # shellcheck disable=SC2086
    echo '#include <span>
int main() {}' | $compiler -std=c++20 -x c++ -fsyntax-only - ||
        die "the C++ compiler '$compiler' cannot compile C++20. GCC 11, Clang 14 or newer can; name one in CXX."
}

python=$(find_python)
check_tools "$python"

# The scripts of an environment hold its absolute path, so a moved checkout needs a new one.
made_for=$(cat "$venv/.made-for" 2>/dev/null || true)
if [[ -e $unfinished || $made_for != "$PWD" ]] || ! "$venv/bin/python" -c '' 2>/dev/null; then
    say "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
    printf '%s' "$PWD" >"$venv/.made-for"
fi

say "installing fedbench-sim[$extras] and what it needs; the first time takes some minutes"
touch "$unfinished"
"$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off \
    -c constraints.txt -e ".[$extras]" >&2
rm "$unfinished"
