#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/data/data_set.h"
#include "worker/data/token_file.h"
#include "worker/data/tokenizer.h"

namespace esteira {

// A .jsonl file: every line is a JSON object and one sample, either of
//   {"tokens": [1, 2, 3], "labels": [-100, 2, 3]}   labels as Hugging Face has them: one for each
//                                                   token, -100 does not count; left out: the
//                                                   tokens
//   {"prompt": "...", "completion": "..."}          the completion's tokens count
//   {"text": "..."}                                 all tokens count
// A sample shorter than sequence_length + 1 tokens is filled up with targets that do not count; a
// longer one is refused, since a cut would drop what was to be learned. Blank lines are skipped.
//
// Opening reads the whole file once and checks every line; errors name the path, the line and what
// is wrong. Keeps 12 bytes a line in memory.
absl::StatusOr<std::unique_ptr<TokenSource>> OpenJsonlSource(TokenFile file,
                                                             std::unique_ptr<Tokenizer> tokenizer,
                                                             int64_t sequence_length,
                                                             int64_t vocab_size);

}  // namespace esteira
