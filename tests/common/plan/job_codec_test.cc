#include "common/plan/job_codec.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "esteira/v1/job.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The job file of the documentation, less what is not built in.
constexpr char kJob[] = R"(name: gpt2-small
model:
  architecture: gpt2
  num_layers: 12
  hidden_size: 768
  num_heads: 12
  num_kv_heads: 12
  intermediate_size: 3072
  vocab_size: 50304
  max_sequence_length: 1024
  tie_embeddings: true
data:
  train: [{path: /data/corpus.txt, weight: 2.0}, {path: /data/more.bin}]
  validation: [{path: /data/held_out.txt}]
  tokenizer: bytes
  sequence_length: 1024
training:
  seed: 18446744073709551615
  steps: 1000
  global_batch_size: 64         # sequences
  micro_batch_size: 4
  precision: bf16
  numerics: fast
  gradient_clip_norm: 0.5
  optimizer: {adamw: {learning_rate: 6.0e-4, beta1: 0.8, beta2: 0.95, epsilon: 1.0e-8, weight_decay: 0.1}}
  schedule: {warmup_steps: 100, decay: wsd, final_ratio: 0.2, decay_steps: 30}
  recompute: auto
  validate_every_steps: 100
  validation_batches: 7
  on_non_finite: stop
  parameter_hash_every_steps: 3
  write_sample_ids: true
parallelism:
  pipeline_stages: 4
  chunks_per_stage: 1
  replicas: 2
  zero: 2
  pipeline_schedule: 1f1b
  reduce_every: all
  gather_for: 1
  gradient_traffic: bf16
checkpoint: {directory: /ckpt/gpt2-small, every_steps: 200, keep: 3, resume: auto}
)";

// The least that a job needs.
constexpr char kSmallJob[] = R"(name: small
model: {architecture: llama, num_layers: 2, hidden_size: 8, num_heads: 2, vocab_size: 256, max_sequence_length: 16}
data: {train: [{path: a.txt}], sequence_length: 8}
training: {steps: 3, global_batch_size: 4}
)";

struct Read {
  v1::JobSpec proto;
  JobSpec job;
  std::vector<Fault> faults;
};

Read ReadJob(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  Read read;
  read.proto = ParseJobFile(yaml, overrides, read.faults);
  read.job = DecodeJob(read.proto, read.faults);
  return read;
}

std::vector<std::string> Lines(const std::vector<Fault>& faults) {
  std::vector<std::string> lines;
  for (const Fault& fault : faults) lines.push_back(fault.field + ": " + fault.message);
  return lines;
}

// That `overrides` over the small job give one fault, of `field`, which says `message`.
void ExpectFault(const std::vector<std::string>& overrides, const std::string& field,
                 const std::string& message) {
  SCOPED_TRACE(absl::StrJoin(overrides, " "));
  const Read read = ReadJob(kSmallJob, overrides);
  const std::vector<std::string> lines = Lines(read.faults);
  ASSERT_EQ(lines.size(), 1u) << absl::StrJoin(lines, "\n");
  EXPECT_EQ(read.faults[0].field, field);
  EXPECT_THAT(read.faults[0].message, HasSubstr(message));
}

TEST(JobCodecTest, EveryFieldArrives) {
  const Read read = ReadJob(kJob);
  EXPECT_THAT(Lines(read.faults), IsEmpty());
  const JobSpec& job = read.job;
  EXPECT_EQ(job.name, "gpt2-small");
  EXPECT_EQ(job.model, (ModelSpec{.architecture = Architecture::kGpt2,
                                  .num_layers = 12,
                                  .hidden_size = 768,
                                  .num_heads = 12,
                                  .num_kv_heads = 12,
                                  .intermediate_size = 3072,
                                  .vocab_size = 50304,
                                  .max_sequence_length = 1024,
                                  .tie_embeddings = true,
                                  .norm_epsilon = 1e-5,
                                  .rope_theta = 10000}));
  ASSERT_EQ(job.train.size(), 2u);
  EXPECT_EQ(job.train[0].path, "/data/corpus.txt");
  EXPECT_EQ(job.train[0].weight, 2);
  EXPECT_EQ(job.train[1].weight, 1);
  EXPECT_EQ(job.validation.size(), 1u);
  EXPECT_EQ(job.sequence_length, 1024);
  EXPECT_EQ(job.seed, 18446744073709551615u);
  EXPECT_EQ(job.steps, 1000);
  EXPECT_EQ(job.global_batch_size, 64);
  EXPECT_EQ(job.precision, Precision::kBf16);
  EXPECT_EQ(job.numerics, Numerics::kFast);
  EXPECT_EQ(job.gradient_clip_norm, 0.5);
  EXPECT_EQ(job.adamw.learning_rate, 6e-4);
  EXPECT_EQ(job.adamw.beta1, 0.8);
  EXPECT_EQ(job.schedule.warmup_steps, 100);
  EXPECT_EQ(job.schedule.decay, Decay::kWsd);
  EXPECT_EQ(job.schedule.final_ratio, 0.2);
  EXPECT_EQ(job.schedule.decay_steps, 30);
  EXPECT_EQ(job.validate_every_steps, 100);
  EXPECT_EQ(job.validation_batches, 7);
  EXPECT_EQ(job.on_non_finite, OnNonFinite::kStop);
  EXPECT_EQ(job.parameter_hash_every_steps, 3);
  EXPECT_TRUE(job.write_sample_ids);
  EXPECT_EQ(job.layout.stages, 4);
  EXPECT_EQ(job.layout.chunks_per_stage, 1);
  EXPECT_EQ(job.layout.replicas, 2);
  EXPECT_EQ(job.layout.zero, 2);
  EXPECT_EQ(job.layout.schedule, "1f1b");
  EXPECT_EQ(job.layout.reduce_every, kAll);
  EXPECT_EQ(job.layout.gather_for, 1);
  EXPECT_EQ(job.gradient_traffic, GradientTraffic::kBf16);
  EXPECT_EQ(job.layout.micro_batch_size, 4);
  EXPECT_EQ(job.layout.recompute, "auto");
  EXPECT_EQ(job.checkpoint_directory, "/ckpt/gpt2-small");
  EXPECT_EQ(job.checkpoint_every_steps, 200);
  EXPECT_EQ(job.checkpoints_to_keep, 3);
}

TEST(JobCodecTest, WhatIsLeftOutHasItsDefault) {
  const Read read = ReadJob(kSmallJob);
  EXPECT_THAT(Lines(read.faults), IsEmpty());
  const JobSpec& job = read.job;
  EXPECT_EQ(job.model.num_kv_heads, 2);
  EXPECT_EQ(job.model.intermediate_size, 32);
  EXPECT_FALSE(job.model.tie_embeddings);  // llama
  EXPECT_EQ(job.model.norm_epsilon, 1e-5);
  EXPECT_EQ(job.model.rope_theta, 10000);
  EXPECT_EQ(job.tokenizer, "bytes");
  EXPECT_EQ(job.precision, Precision::kBf16);
  EXPECT_EQ(job.gradient_clip_norm, 1);
  EXPECT_EQ(job.adamw.learning_rate, 6e-4);
  EXPECT_EQ(job.adamw.beta2, 0.95);
  EXPECT_EQ(job.schedule.decay, Decay::kCosine);
  EXPECT_EQ(job.schedule.final_ratio, 0.1);
  EXPECT_EQ(job.validation_batches, 4);
  EXPECT_EQ(job.on_non_finite, OnNonFinite::kSkip);
  EXPECT_FALSE(job.layout.stages.has_value());
  EXPECT_FALSE(job.layout.replicas.has_value());
  EXPECT_FALSE(job.layout.zero.has_value());
  EXPECT_FALSE(job.layout.schedule.has_value());
  EXPECT_FALSE(job.layout.reduce_every.has_value());
  EXPECT_FALSE(job.layout.gather_for.has_value());
  EXPECT_FALSE(job.layout.micro_batch_size.has_value());
  EXPECT_EQ(job.layout.recompute, "none");
  EXPECT_TRUE(ReadJob(kSmallJob, {"model.architecture=gpt2"}).job.model.tie_embeddings);
  EXPECT_EQ(ReadJob(kSmallJob, {"training.schedule.decay=wsd", "training.steps=40"})
                .job.schedule.decay_steps,
            4);
}

TEST(JobCodecTest, OverridesWinOverTheFile) {
  const Read read = ReadJob(
      kJob, {"training.steps=50", "training.optimizer.adamw.beta1=0.7",
             "parallelism.reduce_every=3", "data.train=[{path: x}]", "name=a=b", "name=other",
             "training.micro_batch_size=", "parallelism.pipeline_schedule=auto"});
  EXPECT_THAT(Lines(read.faults), IsEmpty());
  EXPECT_EQ(read.job.steps, 50);
  EXPECT_EQ(read.job.adamw.beta1, 0.7);
  EXPECT_EQ(read.job.adamw.weight_decay, 0.1);  // what stands beside it stays
  EXPECT_EQ(read.job.layout.reduce_every, 3);
  ASSERT_EQ(read.job.train.size(), 1u);
  EXPECT_EQ(read.job.train[0].path, "x");
  EXPECT_EQ(read.job.name, "other");
  EXPECT_FALSE(read.job.layout.micro_batch_size.has_value());
  EXPECT_EQ(read.job.layout.schedule, "auto");
}

TEST(JobCodecTest, AnOverrideMendsTheFile) {
  const std::string broken = std::string(kSmallJob) + "checkpoint: {keep: many, directory: /c}\n";
  EXPECT_THAT(Lines(ReadJob(broken).faults),
              ElementsAre(HasSubstr("checkpoint.keep: is \"many\"")));
  EXPECT_THAT(Lines(ReadJob(broken, {"checkpoint.keep=2"}).faults), IsEmpty());
}

TEST(JobCodecTest, BrokenOverrides) {
  ExpectFault({"training.steps"}, "--set", "FIELD=VALUE");
  ExpectFault({"=5"}, "--set", "FIELD=VALUE");
  ExpectFault({"training..steps=5"}, "--set", "FIELD=VALUE");
  ExpectFault({"training.stepps=5"}, "training.stepps", "did you mean steps?");
  ExpectFault({"training.steps=[1"}, "training.steps", "is not YAML");
  ExpectFault({"name.first=x"}, "name", "write one value");
}

TEST(JobCodecTest, AnOverrideThatWouldChangeNothingIsAFault) {
  ExpectFault({"model={}"}, "model", "without fields");
  ExpectFault({"training={optimizer: {adamw: {}}}"}, "training.optimizer.adamw", "without fields");
  EXPECT_THAT(Lines(ReadJob(std::string(kSmallJob) + "checkpoint: {}\n").faults), IsEmpty());
}

TEST(JobCodecTest, UnknownFieldsNameTheNearest) {
  ExpectFault({"modle={}"}, "modle", "did you mean model?");
  ExpectFault({"training.step=5"}, "training.step", "did you mean steps?");
  ExpectFault({"training.learning_rate=1"}, "training.learning_rate",
              "did you mean training.optimizer.adamw.learning_rate?");
  ExpectFault({"model.n_layers=5"}, "model.n_layers", "did you mean num_layers?");
  ExpectFault({"data.train=[{path: x, wieght: 3}]"}, "data.train[0].wieght",
              "did you mean weight?");
}

TEST(JobCodecTest, TypesThatDoNotFit) {
  ExpectFault({"training.steps=5.5"}, "training.steps", "\"5.5\", not a whole number");
  ExpectFault({"training.steps=1e3"}, "training.steps", "not a whole number");
  ExpectFault({"training.steps=99999999999999999999"}, "training.steps", "at most 19 digits");
  ExpectFault({"training.steps='5'"}, "training.steps", "remove the quotes");
  ExpectFault({"training.steps=[5]"}, "training.steps", "is a list; write one value");
  ExpectFault({"training.seed=-1"}, "training.seed", "from 0 to 18446744073709551615");
  ExpectFault({"training.write_sample_ids=yes"}, "training.write_sample_ids", "true or false");
  ExpectFault({"training.gradient_clip_norm=one"}, "training.gradient_clip_norm", "not a number");
  ExpectFault({"data.train={path: x}"}, "data.train", "not a list");
  ExpectFault({"data.train=[x]"}, "data.train[0]", "not a map of fields");
  ExpectFault({"checkpoint=3"}, "checkpoint", "not a map of fields");
  ExpectFault({"name=[a]"}, "name", "is a list");
}

TEST(JobCodecTest, WhatCannotBeReadIsNotMissingToo) {
  EXPECT_THAT(Lines(ReadJob("[").faults), ElementsAre(HasSubstr("job file: is not YAML")));
  std::string yaml = kSmallJob;
  yaml.replace(yaml.find("steps: 3"), 8, "steps: x");
  EXPECT_THAT(Lines(ReadJob(yaml).faults), ElementsAre(HasSubstr("training.steps: is \"x\"")));
  yaml = std::string(kSmallJob);
  yaml.replace(yaml.find("{train:"), std::string::npos,
               "x\ntraining: {steps: 3, global_batch_size: 4}\n");
  EXPECT_THAT(Lines(ReadJob(yaml).faults), ElementsAre(HasSubstr("data: is \"x\", not a map")));
}

TEST(JobCodecTest, BrokenFiles) {
  const auto first = [](const std::string& yaml) {
    std::vector<Fault> faults;
    ParseJobFile(yaml, {}, faults);
    return faults.empty() ? std::string() : faults[0].field + ": " + faults[0].message;
  };
  EXPECT_THAT(first("name: a\nmodel: {num_layers: 2\ndata: 3\n"),
              HasSubstr("job file: is not YAML: line 3"));
  EXPECT_THAT(first("name: a\nname: b\n"), HasSubstr("name: is given twice (line 2)"));
  EXPECT_THAT(first("- a\n- b\n"), HasSubstr("job file: is a list, not a map"));
  EXPECT_THAT(first("just text"), HasSubstr("job file: is \"just text\""));
  EXPECT_THAT(first("name: a\n---\nname: b\n"), HasSubstr("2 YAML documents"));
  EXPECT_THAT(first("name: \xff\xfe\n"), HasSubstr("not UTF-8"));
  EXPECT_THAT(first(std::string("name: a\0b\n", 10)), HasSubstr("not UTF-8"));
  EXPECT_THAT(first(std::string(2 << 20, ' ')), HasSubstr("is it a job file?"));
  EXPECT_THAT(first(std::string(100000, '[')), HasSubstr("is not YAML"));
  EXPECT_THAT(first("{? [a]: b}"), HasSubstr("is not a field"));
  EXPECT_EQ(first(""), "");
  EXPECT_EQ(first("name: gr\xc3\xb6\xc3\x9f"
                  "e\n"),
            "");
}

TEST(JobCodecTest, NothingAtAllNamesAllThatIsMissing) {
  std::vector<std::string> fields;
  for (const Fault& fault : ReadJob("").faults) fields.push_back(fault.field);
  EXPECT_THAT(fields, ElementsAre("name", "model.architecture", "model.num_layers",
                                  "model.hidden_size", "model.num_heads", "model.vocab_size",
                                  "model.max_sequence_length", "data.train", "data.sequence_length",
                                  "training.steps", "training.global_batch_size"));
}

TEST(JobCodecTest, EveryFaultIsFoundInOnePass) {
  const Read read =
      ReadJob(kSmallJob, {"training.stepps=5", "training.precision=fp16", "model.num_heads=3",
                          "training.optimizer.adamw.beta1=1", "parallelism.zero=4", "name=../x"});
  std::vector<std::string> fields;
  for (const Fault& fault : read.faults) fields.push_back(fault.field);
  EXPECT_THAT(fields,
              ElementsAre("training.stepps", "name", "model.num_heads", "training.precision",
                          "training.optimizer.adamw.beta1", "parallelism.zero"));
  const absl::Status status = FaultsStatus(read.faults);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("\nparallelism.zero: is 4; give a number from 0 to 3"));
  EXPECT_TRUE(FaultsStatus({}).ok());
}

TEST(JobCodecTest, NamesThatAreNoFolders) {
  for (const char* name : {"..", ".hidden", "a/b", "-x", "a b", "\"a\\nb\"", "\xc3\xb6", "~"}) {
    EXPECT_THAT(Lines(ReadJob(kSmallJob, {absl::StrCat("name=", name)}).faults),
                ElementsAre(HasSubstr("name: ")))
        << name;
  }
  ExpectFault({"name=" + std::string(64, 'a')}, "name", "at most 63");
  EXPECT_THAT(Lines(ReadJob(kSmallJob, {"name=" + std::string(63, 'a')}).faults), IsEmpty());
  EXPECT_THAT(Lines(ReadJob(kSmallJob, {"name=A.b_c-9"}).faults), IsEmpty());
}

TEST(JobCodecTest, Models) {
  ExpectFault({"model.architecture=mistral"}, "model.architecture",
              "is not built in; use gpt2 or llama");
  ExpectFault({"model.architecture=Llama"}, "model.architecture",
              "does not exist; use gpt2 or llama");
  ExpectFault({"model.from=/models/x"}, "model.from", "not built in");
  ExpectFault({"model.num_layers=0"}, "model.num_layers", "missing or 0");
  ExpectFault({"model.num_layers=-3"}, "model.num_layers", "is -3");
  ExpectFault({"model.num_layers=1000000"}, "model.num_layers", "from 1 to 1024");
  ExpectFault({"model.num_heads=3"}, "model.num_heads", "does not divide hidden_size 8");
  ExpectFault({"model.num_heads=8"}, "model.num_heads", "even number");
  ExpectFault({"model.num_heads=2", "model.num_kv_heads=4"}, "model.num_kv_heads",
              "does not divide num_heads 2");
  ExpectFault({"model.architecture=gpt2", "model.num_kv_heads=1"}, "model.num_kv_heads", "gpt2");
  ExpectFault({"model.architecture=gpt2", "model.rope_theta=5"}, "model.rope_theta",
              "no rotary positions");
  ExpectFault({"model.rope_theta=.nan"}, "model.rope_theta", "not a number");
  ExpectFault({"model.rope_theta=nan"}, "model.rope_theta", "give a number");
  ExpectFault({"model.norm_epsilon=0"}, "model.norm_epsilon", "is 0");
  ExpectFault({"model.vocab_size=255"}, "model.vocab_size", "at least 256");
  ExpectFault({"model.hidden_size=1048576", "model.num_layers=1024"}, "model", "parameters");
  EXPECT_THAT(
      Lines(ReadJob(kSmallJob, {"model.vocab_size=200", "data.train=[{path: t.bin}]"}).faults),
      IsEmpty());
  EXPECT_THAT(Lines(ReadJob(kSmallJob, {"model.architecture=gpt2", "model.num_heads=8"}).faults),
              IsEmpty());
}

TEST(JobCodecTest, DataSets) {
  ExpectFault({"data.train="}, "data.train", "at least one source");
  ExpectFault({"data.train=[]"}, "data.train", "at least one source");
  ExpectFault({"data.train=[{weight: 1}]"}, "data.train[0].path", "is missing");
  ExpectFault({"data.train=[{path: a}, {path: b, weight: 0}]"}, "data.train[1].weight", "above 0");
  ExpectFault({"data.train=[{path: a, weight: inf}]"}, "data.train[0].weight", "give a number");
  ExpectFault({"data.train=[{path: a, weight: 1e-6}, {path: b, weight: 1e6}]"},
              "data.train[0].weight", "raise it");
  EXPECT_TRUE(ReadJob(kSmallJob, {"data.train=[{path: a.jsonl}]"}).faults.empty());
  ExpectFault({"data.train=[{path: a.idx}]"}, "data.train[0].path", "not built in");
  ExpectFault({"data.tokenizer=/x/tokenizer.json"}, "data.tokenizer", "use bytes");
  ExpectFault({"data.sequence_length=17"}, "data.sequence_length", "use at most 16");
  ExpectFault({"data.sequence_length=0"}, "data.sequence_length", "missing or 0");
}

TEST(JobCodecTest, TrainingOptions) {
  ExpectFault({"training.steps=0"}, "training.steps", "missing or 0");
  ExpectFault({"training.steps=9000000000000000000"}, "training.steps", "give a number");
  ExpectFault({"training.micro_batch_size=5"}, "training.micro_batch_size",
              "more than global_batch_size 4");
  ExpectFault({"training.micro_batch_size=-1"}, "training.micro_batch_size", "is -1");
  ExpectFault({"training.global_batch_size=16777216", "training.micro_batch_size=16777216",
               "model.vocab_size=16777216"},
              "training.micro_batch_size", "can be addressed");
  EXPECT_EQ(ReadJob(kSmallJob, {"training.numerics=exact"}).job.numerics, Numerics::kExact);
  ExpectFault({"training.numerics=exactly"}, "training.numerics", "use fast or exact");
  ExpectFault({"training.precision=fp16"}, "training.precision",
              "is not built in; use bf16 or fp32");
  ExpectFault({"training.recompute=some"}, "training.recompute", "use none or full or auto");
  ExpectFault({"training.on_non_finite=roll_back"}, "training.on_non_finite",
              "checkpoint.every_steps and checkpoint.resume: auto, or use skip or stop");
  ExpectFault({"training.on_non_finite=hope"}, "training.on_non_finite",
              "use skip or stop or roll_back");
  EXPECT_EQ(ReadJob(kSmallJob, {"training.on_non_finite=roll_back", "checkpoint.directory=/c",
                                "checkpoint.every_steps=5", "checkpoint.resume=auto"})
                .job.on_non_finite,
            OnNonFinite::kRollBack);
  ExpectFault({"parallelism.lookahead=-1"}, "parallelism.lookahead", "from 0 to 64");
  EXPECT_EQ(ReadJob(kSmallJob, {"parallelism.lookahead=0"}).job.layout.lookahead, 0);
  EXPECT_EQ(ReadJob(kSmallJob, {}).job.layout.lookahead, std::nullopt);
  EXPECT_EQ(ReadJob(kSmallJob, {}).job.gradient_traffic, GradientTraffic::kFull);
  EXPECT_EQ(ReadJob(kSmallJob, {"parallelism.gradient_traffic=full"}).job.gradient_traffic,
            GradientTraffic::kFull);
  EXPECT_EQ(ReadJob(kSmallJob, {"parallelism.gradient_traffic=bf16"}).job.gradient_traffic,
            GradientTraffic::kBf16);
  ExpectFault({"parallelism.gradient_traffic=fp8"}, "parallelism.gradient_traffic",
              "use full or bf16");
  ExpectFault({"parallelism.gradient_traffic=bf16", "training.numerics=exact"},
              "parallelism.gradient_traffic", "use full, or training.numerics fast");
  ExpectFault({"training.dropout=1"}, "training.dropout", "give a number from 0 and below 1");
  EXPECT_EQ(ReadJob(kSmallJob, {"training.dropout=0.1"}).job.dropout, 0.1);
  ExpectFault({"training.spike_factor=1"}, "training.spike_factor", "give a number above 1");
  ExpectFault({"training.spike_factor=nan"}, "training.spike_factor", "is nan");
  EXPECT_EQ(ReadJob(kSmallJob, {"training.spike_factor=8"}).job.spike_factor, 8);
  EXPECT_EQ(ReadJob(kSmallJob, {"training.spike_factor=0"}).job.spike_factor, 0);
  ExpectFault({"check=maybe"}, "check", "use auto or off or full");
  EXPECT_EQ(ReadJob(kSmallJob, {}).job.check, LaunchCheck::kAuto);
  EXPECT_EQ(ReadJob(kSmallJob, {"check=off"}).job.check, LaunchCheck::kOff);
  EXPECT_EQ(ReadJob(kSmallJob, {"check=full"}).job.check, LaunchCheck::kFull);
  ExpectFault({"training.gradient_clip_norm=-1"}, "training.gradient_clip_norm", "is -1");
  ExpectFault({"training.gradient_clip_norm=inf"}, "training.gradient_clip_norm", "is inf");
  ExpectFault({"training.validate_every_steps=5"}, "training.validate_every_steps",
              "data.validation is empty");
  ExpectFault({"training.validation_batches=0"}, "training.validation_batches", "missing or 0");
  ExpectFault({"training.parameter_hash_every_steps=-1"}, "training.parameter_hash_every_steps",
              "is -1");
  EXPECT_THAT(Lines(ReadJob(kSmallJob, {"training.gradient_clip_norm=0"}).faults), IsEmpty());
}

TEST(JobCodecTest, OptimizerAndSchedule) {
  const std::string adamw = "training.optimizer.adamw.";
  for (const char* bad : {"learning_rate=-1", "learning_rate=nan", "learning_rate=1e39", "beta1=1",
                          "beta1=-0.1", "beta2=1", "beta2=nan", "epsilon=0", "epsilon=1e-50",
                          "weight_decay=-1", "weight_decay=inf"}) {
    const std::string field = std::string(bad).substr(0, std::string(bad).find('='));
    ExpectFault({adamw + bad}, adamw + field, "give a number");
  }
  EXPECT_THAT(Lines(ReadJob(kSmallJob, {adamw + "beta1=0", adamw + "weight_decay=0"}).faults),
              IsEmpty());
  EXPECT_EQ(ReadJob(kSmallJob, {adamw + "weight_decay=0"}).job.adamw.weight_decay, 0);
  ExpectFault({"training.optimizer.sgd={}"}, "training.optimizer.sgd", "did you mean adamw?");
  ExpectFault({"training.schedule.decay=exponential"}, "training.schedule.decay",
              "use cosine or linear or constant or wsd");
  ExpectFault({"training.schedule.warmup_steps=-1"}, "training.schedule.warmup_steps", "is -1");
  ExpectFault({"training.schedule.final_ratio=1.5"}, "training.schedule.final_ratio",
              "from 0 to 1");
  ExpectFault({"training.schedule.decay_steps=2"}, "training.schedule.decay_steps",
              "no use for it");
  ExpectFault({"training.schedule={decay: wsd, decay_steps: 4}"}, "training.schedule.decay_steps",
              "from 0 to 3");
}

TEST(JobCodecTest, Parallelism) {
  ExpectFault({"parallelism.pipeline_stages=0"}, "parallelism.pipeline_stages", "is 0");
  ExpectFault({"parallelism.replicas=0"}, "parallelism.replicas", "is 0");
  ExpectFault({"parallelism.replicas=9223372036854775807"}, "parallelism.replicas", "from 1 to");
  ExpectFault({"parallelism.zero=4"}, "parallelism.zero", "from 0 to 3");
  ExpectFault({"parallelism.chunks_per_stage=0"}, "parallelism.chunks_per_stage", "is 0");
  ExpectFault({"parallelism.pipeline_schedule=csv:/a/b.csv"}, "parallelism.pipeline_schedule",
              "names a file whose text is not in");
  ExpectFault({"parallelism.pipeline_schedule_csv=0F0"}, "parallelism.pipeline_schedule_csv",
              "pipeline_schedule is not csv:PATH");
  for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb_h1", "zb_h2", "zb_v", "v_half",
                               "v_min", "dualpipe_v", "auto"}) {
    const Read read =
        ReadJob(kSmallJob, {absl::StrCat("parallelism.pipeline_schedule=", schedule)});
    EXPECT_TRUE(read.faults.empty()) << schedule;
    EXPECT_EQ(read.job.layout.schedule, schedule);
  }
  ExpectFault({"parallelism.pipeline_schedule=2f2b"}, "parallelism.pipeline_schedule",
              "does not exist");
  for (const char* window : {"0", "-1", "some", "1.5", "99999999999"}) {
    ExpectFault({absl::StrCat("parallelism.reduce_every=", window)}, "parallelism.reduce_every",
                "or all");
    ExpectFault({absl::StrCat("parallelism.gather_for=", window)}, "parallelism.gather_for",
                "or all");
  }
}

std::vector<std::string> SetFields(const std::vector<std::string>& overrides) {
  const Read read = ReadJob(kJob, overrides);
  const std::vector<std::string> noted(read.proto.set_fields().begin(),
                                       read.proto.set_fields().end());
  EXPECT_EQ(read.job.set_fields, noted);
  return noted;
}

TEST(JobCodecTest, WhatOverridesGiveIsNoted) {
  EXPECT_THAT(SetFields({}), IsEmpty());
  EXPECT_THAT(SetFields({"training.steps=50", "training.dropout=0", "training.steps=40"}),
              ElementsAre("training.steps", "training.dropout"));
  // Of a map only what it names; nothing, or a list, is one value.
  EXPECT_THAT(SetFields({"training.optimizer={adamw: {beta1: 0.7, beta2: 0.9}}",
                         "training.schedule=null", "data.train=[{path: b.txt, weight: 1}]"}),
              ElementsAre("training.optimizer.adamw.beta1", "training.optimizer.adamw.beta2",
                          "training.schedule", "data.train"));
  EXPECT_THAT(ReadJob(kSmallJob, {"training.steps=many"}).proto.set_fields(), IsEmpty());
}

TEST(JobCodecTest, SetFieldsAreNoFieldOfAFile) {
  ExpectFault({"set_fields=[training.steps]"}, "set_fields", "remove it");
  const Read read = ReadJob(absl::StrCat(kSmallJob, "set_fields: [training.dropout]\n"));
  ASSERT_EQ(read.faults.size(), 1u);
  EXPECT_EQ(read.faults[0].field, "set_fields");
  EXPECT_THAT(read.job.set_fields, IsEmpty());
  for (const char* typo : {"set_field=1", "training.set_fields=1"}) {
    EXPECT_THAT(Lines(ReadJob(kSmallJob, {typo}).faults),
                ElementsAre(::testing::Not(HasSubstr("mean set_fields"))));
  }
}

TEST(JobCodecTest, SetFieldsOfARequestAreFields) {
  for (const char* path : {"training.lr", "training.steps.x", "data.train.path", "training.", "",
                           ".training", "training..steps", "data.train[0].path"}) {
    Read read = ReadJob(kSmallJob);
    read.proto.add_set_fields("training.schedule.decay");
    read.proto.add_set_fields(path);
    DecodeJob(read.proto, read.faults);
    EXPECT_THAT(Lines(read.faults),
                ElementsAre(HasSubstr(absl::StrCat("set_fields: \"", path, "\" is not a field"))));
  }
}

TEST(JobCodecTest, PathsWithANulByte) {
  ExpectFault({R"(data.train=[{path: "a\0b"}])"}, "data.train[0].path", "NUL byte");
  ExpectFault({R"(data.validation=[{path: "a\0.bin"}])"}, "data.validation[0].path", "NUL byte");
  ExpectFault({R"(checkpoint.directory="/c\0")"}, "checkpoint.directory", "NUL byte");
}

TEST(JobCodecTest, Checkpoints) {
  ExpectFault({"checkpoint.every_steps=5"}, "checkpoint.directory", "is missing");
  ExpectFault({"checkpoint.resume=auto"}, "checkpoint.directory", "is missing");
  EXPECT_THAT(Lines(ReadJob(kSmallJob, {"checkpoint.resume=never"}).faults), IsEmpty());
  ExpectFault({"checkpoint.keep=-1"}, "checkpoint.keep", "is -1");
  ExpectFault({"checkpoint.resume=maybe"}, "checkpoint.resume", "does not exist");
  EXPECT_THAT(Lines(ReadJob(kSmallJob, {"checkpoint="}).faults), IsEmpty());
}

}  // namespace
}  // namespace esteira
