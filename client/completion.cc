#include "client/commands.h"

namespace esteira {

std::string BashCompletion() {
  return R"bash(# Completion of esteira for bash: source <(esteira completion bash)
_esteira() {
  local word="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" words=""
  case "$COMP_CWORD:$command" in
    1:*) words="local submit list describe wait cancel logs steps plan workers checkpoints generate evaluate health version completion" ;;
    2:local) words="up down status" ;;
    2:workers) words="list describe" ;;
    2:checkpoints) words="list verify diff export" ;;
    2:completion) words="bash" ;;
    *:submit) words="--file --set --follow --dry-run --name --priority --request-id --output --server --help" ;;
    *:local) words="--workers --device --synthetic-pass-seconds --synthetic-flops --slow-down --threads --dir --port --help" ;;
    *:plan) words="--file --set --workers --cluster --schedule --compare --output --help" ;;
    *:logs) words="--follow --rank --tail --server --help" ;;
    *:steps) words="--follow --output --server --help" ;;
    *:wait) words="--for --timeout --server --help" ;;
    *:checkpoints) words="--weights-only --all --dtype --shard-size --output --server --help"
      COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -d -- "$word")); return ;;
    *:generate) words="--prompt --tokens --temperature --seed --help" ;;
    *:evaluate) words="--data --help" ;;
    *) words="--server --output --help" ;;
  esac
  case "${COMP_WORDS[COMP_CWORD - 1]}" in
    -f | --file | --cluster | --data | --dir) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --for) words="QUEUED RUNNING SUCCEEDED FAILED CANCELLED" ;;
    --device) words="cpu synthetic" ;;
  esac
  if [[ "$COMP_CWORD" == 2 && "$command" =~ ^(describe|wait|cancel|logs|steps)$ && "$word" != -* ]]; then
    words="$(esteira list 2>/dev/null | awk 'NR > 1 {print $1}')"
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -F _esteira esteira
)bash";
}

}  // namespace esteira
