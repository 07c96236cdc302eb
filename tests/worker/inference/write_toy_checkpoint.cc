// Writes a toy checkpoint and prints its folder, then what we compute on its data: the evaluation,
// and a line of the next token's logits after the first 16 bytes. Usage: write_toy_checkpoint NAME
// DIRECTORY

#include <fstream>
#include <iostream>
#include <iterator>

#include "common/base/status_macros.h"
#include "tests/worker/inference/toy_checkpoint.h"
#include "worker/inference/commands.h"
#include "worker/inference/inference_model.h"

namespace esteira {
namespace {

absl::Status Run(const std::string& name, const std::string& directory) {
  ASSIGN_OR_RETURN(const std::string folder, WriteToyCheckpoint(name, directory));
  std::cout << folder << "\n";
  const std::string data = directory + "/data.txt";
  RETURN_IF_ERROR(
      RunEvaluate({.folder = folder, .data = data, .threads = 1, .json = true}, std::cout));
  RealFileSystem files;
  ASSIGN_OR_RETURN(const std::string text, files.Read(data));
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < 16; ++i) tokens.push_back(static_cast<unsigned char>(text[i]));
  ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(files, folder));
  const auto device = MakeCpuDevice({});
  const auto kernels = MakeCpuKernels(1);
  ASSIGN_OR_RETURN(const auto model, InferenceModel::Load(*reader, *device, *kernels));
  ASSIGN_OR_RETURN(const std::vector<float> logits, model->NextLogits(tokens));
  std::cout.precision(9);
  for (const float logit : logits) std::cout << logit << " ";
  std::cout << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace esteira

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const absl::Status status = esteira::Run(argv[1], argv[2]);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
