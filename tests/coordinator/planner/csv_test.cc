#include "coordinator/planner/schedules/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace esteira {
namespace {

using ::testing::HasSubstr;

// 1F1B on two stages.
constexpr const char* kTwoStages =
    "0F0,0F1,,,0B0,0F2,0B1,,0B2\n"
    ",1F0,1B0,1F1,1B1,,1F2,1B2,\n";
// A V of two stages and four chunks, I and W apart.
constexpr const char* kV =
    "0F0,,,3F0,3I0,3W0,,,0I0,0W0\n"
    ",1F0,2F0,,,2I0,1I0,2W0,1W0\n";

CsvFault FaultOf(absl::string_view text) {
  auto read = ReadCsvSchedule(text);
  if (std::holds_alternative<CsvFault>(read)) return std::get<CsvFault>(std::move(read));
  ADD_FAILURE() << "this was accepted:\n" << text;
  return {};
}

CsvSchedule ScheduleOf(absl::string_view text) {
  auto read = ReadCsvSchedule(text);
  if (std::holds_alternative<CsvSchedule>(read)) return std::get<CsvSchedule>(std::move(read));
  ADD_FAILURE() << MarkFault(text, std::get<CsvFault>(read));
  return {};
}

void ExpectFault(absl::string_view text, int row, int column, absl::string_view cell,
                 const std::string& message) {
  const CsvFault fault = FaultOf(text);
  EXPECT_EQ(fault.row, row) << text << fault.message;
  EXPECT_EQ(fault.column, column) << text << fault.message;
  EXPECT_EQ(fault.cell, std::string(cell)) << text << fault.message;
  EXPECT_THAT(fault.message, HasSubstr(message)) << text;
}

// Every micro-batch through every chunk, forward and then backward; chunk c on stage c % stages.
PipelineOps AllForwardAllBackward(int stages, int chunks_per_stage, int micro_batches, bool split) {
  PipelineOps pipeline;
  pipeline.ops.resize(static_cast<size_t>(stages));
  const int chunks = stages * chunks_per_stage;
  for (int chunk = 0; chunk < chunks; ++chunk) pipeline.stage_of_chunk.push_back(chunk % stages);
  for (int j = 0; j < micro_batches; ++j) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      pipeline.ops[static_cast<size_t>(chunk % stages)].push_back({Op::kForward, chunk, j});
    }
  }
  for (int j = 0; j < micro_batches; ++j) {
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      auto& ops = pipeline.ops[static_cast<size_t>(chunk % stages)];
      ops.push_back({split ? Op::kBackwardInput : Op::kBackward, chunk, j});
      if (split) ops.push_back({Op::kBackwardWeight, chunk, j});
    }
  }
  return pipeline;
}

TEST(ReadCsvSchedule, ReadsOneForwardOneBackward) {
  const CsvSchedule schedule = ScheduleOf(kTwoStages);
  EXPECT_EQ(schedule.micro_batches, 3);
  EXPECT_EQ(schedule.chunks_per_stage, 1);
  EXPECT_EQ(schedule.pipeline.stage_of_chunk, (std::vector<int>{0, 1}));
  const StageOps ops = {{{Op::kForward, 0, 0},
                         {Op::kForward, 0, 1},
                         {Op::kBackward, 0, 0},
                         {Op::kForward, 0, 2},
                         {Op::kBackward, 0, 1},
                         {Op::kBackward, 0, 2}},
                        {{Op::kForward, 1, 0},
                         {Op::kBackward, 1, 0},
                         {Op::kForward, 1, 1},
                         {Op::kBackward, 1, 1},
                         {Op::kForward, 1, 2},
                         {Op::kBackward, 1, 2}}};
  EXPECT_EQ(schedule.pipeline.ops, ops);
}

TEST(ReadCsvSchedule, ReadsAVWithSplitBackwardPasses) {
  const CsvSchedule schedule = ScheduleOf(kV);
  EXPECT_EQ(schedule.micro_batches, 1);
  EXPECT_EQ(schedule.chunks_per_stage, 2);
  EXPECT_EQ(schedule.pipeline.stage_of_chunk, (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(schedule.pipeline.ops[0][2], (ChunkOp{Op::kBackwardInput, 3, 0}));
  EXPECT_EQ(schedule.pipeline.ops[0][3], (ChunkOp{Op::kBackwardWeight, 3, 0}));
}

TEST(ReadCsvSchedule, AFullBackwardPassOfOneMicroBatchGoesWithASplitOneOfAnother) {
  EXPECT_EQ(ScheduleOf("0F0,0F1,0B0,0I1,0W1").micro_batches, 2);
}

TEST(ReadCsvSchedule, AnOverlappedPairIsItsPartsInOrder) {
  const CsvSchedule schedule = ScheduleOf("0F0,(0F1;0B0)OVERLAP_F_B, ( 0I1 ; 0W1 ) OVERLAP_F_B");
  ASSERT_EQ(schedule.pipeline.ops[0].size(), 5u);
  EXPECT_EQ(schedule.pipeline.ops[0][1], (ChunkOp{Op::kForward, 0, 1}));
  EXPECT_EQ(schedule.pipeline.ops[0][2], (ChunkOp{Op::kBackward, 0, 0}));
  EXPECT_EQ(schedule.pipeline.ops[0][3], (ChunkOp{Op::kBackwardInput, 0, 1}));
}

TEST(ReadCsvSchedule, OnlyCellsCount) {
  const StageOps ops = ScheduleOf(kTwoStages).pipeline.ops;
  const std::string spaced = absl::StrReplaceAll(kTwoStages, {{",", " ,\t "}});
  const std::string crlf = absl::StrReplaceAll(kTwoStages, {{"\n", "\r\n"}});
  const std::string quoted =
      absl::StrReplaceAll(kTwoStages, {{"0F1", "\"0F1\""}, {"1B1", "\" 1B1 \""}});
  const std::string unended = std::string(kTwoStages).substr(0, std::string(kTwoStages).size() - 1);
  for (const std::string& text :
       {spaced, crlf, quoted, unended, absl::StrCat("\xEF\xBB\xBF", kTwoStages),
        absl::StrCat(kTwoStages, "\n \r\n\n"),
        absl::StrReplaceAll(kTwoStages, {{"\n", ",,,,\n"}})}) {
    EXPECT_EQ(ScheduleOf(text).pipeline.ops, ops) << text;
  }
}

TEST(ReadCsvSchedule, OneRowIsOneStage) {
  const CsvSchedule schedule = ScheduleOf("0F0,1F0,1B0,0B0");
  EXPECT_EQ(schedule.pipeline.stage_of_chunk, (std::vector<int>{0, 0}));
  EXPECT_EQ(schedule.chunks_per_stage, 2);
}

TEST(ReadCsvSchedule, RefusesAFileWithoutActions) {
  for (const char* text : {"", "\n", " , ,\n,,\n", "\xEF\xBB\xBF", "\r\n\r\n"}) {
    ExpectFault(text, -1, -1, "", "the schedule is empty");
  }
}

TEST(ReadCsvSchedule, RefusesACellThatIsNoAction) {
  for (const char* cell : {"F",
                           "0",
                           "0F",
                           "F0",
                           "0f0",
                           "0X0",
                           "0F0 0B0",
                           "0F-1",
                           "-1F0",
                           "0F0;",
                           "0FB0",
                           "0 F0",
                           "0F0x",
                           "(0F0;0B0)",
                           "(0F0;0B0",
                           "()OVERLAP_F_B",
                           "(0F0;)OVERLAP_F_B",
                           "(0F0;0B0)OVERLAP",
                           "0OVERLAP_F_B0",
                           "\"0B0",
                           "\xff"}) {
    ExpectFault(absl::StrCat("0F0,", cell, ",0B0"), 0, 1, cell, "is not an action");
  }
  ExpectFault(absl::string_view("0F0,0B0\0", 8), 0, 1, absl::string_view("0B0\0", 4),
              "\"0B0\\x00\" is not an action");
}

TEST(ReadCsvSchedule, RefusesCommunicationAndSaysWhatToExport) {
  for (const char* cell : {"0SEND_F0", "0RECV_F1", "0SEND_B0", "1RECV_B0", "0UNSHARD", "0RESHARD",
                           "0REDUCE_GRAD", "(0F0;0SEND_F0)OVERLAP_F_B"}) {
    ExpectFault(absl::StrCat("0F0\n,", cell), 1, 1, cell, "compute-only");
  }
}

TEST(ReadCsvSchedule, RefusesHugeNumbers) {
  for (const char* cell : {"0F1048576", "1048576F0", "99999999999999999999F0",
                           "0F99999999999999999999999999999999999999999999999999999999"}) {
    ExpectFault(absl::StrCat("0F0,", cell), 0, 1, cell, "too large");
  }
  ExpectFault("0F0,0F1048575", 0, 1, "0F1048575", "no cell is of micro-batch 1");
  EXPECT_EQ(ScheduleOf("0F00000000000000000000000000000,0B0").micro_batches, 1);
}

TEST(ReadCsvSchedule, RefusesChunksInTheWrongPlace) {
  ExpectFault("0F0,0B0\n1F0,1B0,0F1", 1, 2, "0F1", "chunk 0 stands in row 0 already");
  ExpectFault("0F0,0B0\n2F0,2B0", 1, 0, "2F0", "no cell is of chunk 1");
  ExpectFault("1F0,1B0", 0, 0, "1F0", "no cell is of chunk 0");
  ExpectFault("0F0,0B0\n1F0,2F0,2B0,1B0", 1, -1, "", "row 1 has 2 chunks, and row 0 has 1");
  ExpectFault("0F0,0B0\n\n1F0,1B0", 1, -1, "", "row 1 has 0 chunks");
}

TEST(ReadCsvSchedule, RefusesHolesInMicroBatches) {
  ExpectFault("0F0,0B0,0F2,0B2", 0, 2, "0F2", "no cell is of micro-batch 1");
  ExpectFault("0F1,0B1", 0, 0, "0F1", "no cell is of micro-batch 0");
}

TEST(ReadCsvSchedule, RefusesMissingPasses) {
  ExpectFault("0F0,0B0,0F1", 0, 2, "0F1",
              "the backward pass of micro-batch 1 on chunk 0 is missing; add 0B1, or 0I1 and 0W1");
  ExpectFault("0F0,0I0", 0, 1, "0I0",
              "weights' backward pass of micro-batch 0 on chunk 0 is missing");
  ExpectFault("0F0,0F1,0B0,0B1\n1F0,1B0", 1, -1, "",
              "the forward pass of micro-batch 1 on chunk 1 is missing; add 1F1");
}

TEST(ReadCsvSchedule, RefusesDoubledAndMixedPasses) {
  ExpectFault("0F0,0F0,0B0", 0, 1, "0F0", "stands in row 0, column 0 already");
  ExpectFault("0F0,0B0,0B0", 0, 2, "0B0", "already");
  ExpectFault("0F0,0I0,0I0,0W0", 0, 2, "0I0", "already");
  ExpectFault("0F0,0I0,0W0,0W0", 0, 3, "0W0", "already");
  ExpectFault("0F0,(0B0;0B0)OVERLAP_F_B", 0, 1, "(0B0;0B0)OVERLAP_F_B", "already");
  ExpectFault("0F0,0B0,0I0", 0, 2, "0I0", "both a full backward pass (B) and a split one");
  ExpectFault("0F0,0B0,0W0", 0, 2, "0W0", "both");
  ExpectFault("0F0,0I0,0B0", 0, 2, "0B0", "both");
}

TEST(ReadCsvSchedule, RefusesPassesInTheWrongOrder) {
  ExpectFault("0I0,0F0,0W0", 0, 0, "0I0", "comes before its forward pass");
  ExpectFault("0B0,0F0", 0, 0, "0B0", "move 0F0 before it");
  ExpectFault("0F0,0W0,0I0", 0, 1, "0W0", "move 0I0 before it");
  ExpectFault("0F0,0F1,0B1,0B0", 0, 3, "0B0", "comes after 0B1");
  ExpectFault("0F0,0F1,0I0,0I1,0W1,0W0", 0, 5, "0W0", "comes after 0W1");
  ExpectFault("0F0,0F1,0I0,0B1,0W0", 0, 4, "0W0", "comes after 0B1");
  EXPECT_EQ(ScheduleOf("0F1,0F0,0I1,0I0,0W0,0W1").micro_batches, 2)
      << "only gradients of weights are added up";
}

TEST(ReadCsvSchedule, NamesWhoWaitsForWhomInADeadlock) {
  const char* circle =
      "0F0,0B0,0F1,0B1\n"
      "1F0,1F1,1B0,1B1\n";
  ExpectFault(circle, 0, 1, "0B0",
              "\"0B0\" can never start: it waits for 1B0, which stands in row 1 behind 1F1, and "
              "1F1 waits for 0F1, which stands in row 0 behind 0B0; move one of them");
  const char* own_row = "1F0,0F0,1I0,1W0,0B0\n";
  ExpectFault(own_row, 0, 0, "1F0", "waits for 0F0, which stands in row 0 behind 1F0");
}

TEST(MarkFault, ShowsTheRowsAroundTheCell) {
  const char* text =
      "0F0,0F1,,,0B0,0B1\n"
      "1F0,1F1,1X0,1B0,1B1\r\n"
      "2F0,2B0,2F1,2B1\n";
  EXPECT_EQ(
      MarkFault(text, FaultOf(text)),
      "row 1, column 2 (counted from 0): \"1X0\" is not an action; write the chunk, then F, B, "
      "I or W, then the micro-batch, as in 2F0, or leave the cell empty\n"
      "\n"
      "column    0   1   2   3   4   5\n"
      "row 0     0F0 0F1         0B0 0B1\n"
      "row 1     1F0 1F1 1X0 1B0 1B1\n"
      "                  ^^^\n"
      "row 2     2F0 2B0 2F1 2B1\n");
}

TEST(MarkFault, ShowsAPartOfALargeFile) {
  std::string text;
  for (int row = 0; row < 30; ++row) {
    std::vector<std::string> cells;
    for (int j = 0; j < 100; ++j)
      cells.push_back(absl::StrCat(row, row == 20 && j == 50 ? "?" : "F", j));
    absl::StrAppend(&text, absl::StrJoin(cells, ","), "\n");
  }
  const std::string marked = MarkFault(text, FaultOf(text));
  const std::vector<std::string> lines = absl::StrSplit(marked, '\n');
  ASSERT_EQ(lines.size(), 10u) << marked;
  EXPECT_EQ(lines[2], "column    46    47    48    49    50    51    52    53    54");
  EXPECT_EQ(lines[5], "row 20    20F46 20F47 20F48 20F49 20?50 20F51 20F52 20F53 20F54");
  EXPECT_EQ(lines[6], "                                  ^^^^^");
}

TEST(MarkFault, UnderlinesARowAndNothingWhereTheFileIsEmpty) {
  const char* text = "0F0,0B0\n1F0,2F0,2B0,1B0\n";
  EXPECT_THAT(MarkFault(text, FaultOf(text)), HasSubstr("row 1     1F0 2F0 2B0 1B0\n"
                                                        "          ^^^ ^^^ ^^^ ^^^\n"));
  EXPECT_THAT(MarkFault("", FaultOf("")), HasSubstr("empty"));
  EXPECT_EQ(MarkFault(text, {.row = 7, .column = 9, .cell = "", .message = "m"}).substr(0, 5),
            "row 7")
      << "a fault of another text does no harm";
}

TEST(WriteCsvSchedule, WhatIsWrittenIsReadAsTheSame) {
  for (int stages : {1, 2, 3, 7}) {
    for (int chunks : {1, 2, 3}) {
      for (int micro_batches : {1, 2, 5}) {
        for (bool split : {false, true}) {
          const PipelineOps pipeline = AllForwardAllBackward(stages, chunks, micro_batches, split);
          const CsvSchedule read = ScheduleOf(WriteCsvSchedule(pipeline));
          EXPECT_EQ(read.pipeline.ops, pipeline.ops);
          EXPECT_EQ(read.pipeline.stage_of_chunk, pipeline.stage_of_chunk);
          EXPECT_EQ(read.micro_batches, micro_batches);
          EXPECT_EQ(read.chunks_per_stage, chunks);
        }
      }
    }
  }
  EXPECT_EQ(WriteCsvSchedule(AllForwardAllBackward(2, 1, 1, true)), "0F0,0I0,0W0\n1F0,1I0,1W0\n");
}

TEST(ReadCsvSchedule, AMillionCells) {
  const PipelineOps pipeline = AllForwardAllBackward(50, 2, 3400, true);
  const CsvSchedule read = ScheduleOf(WriteCsvSchedule(pipeline));
  EXPECT_EQ(read.pipeline.ops, pipeline.ops);
}

// What any bytes must do: be refused at a place that can be shown, or be a schedule that is written
// and read as the same.
void CheckAnyBytes(absl::string_view bytes) {
  const auto read = ReadCsvSchedule(bytes);
  if (std::holds_alternative<CsvFault>(read)) {
    const CsvFault& fault = std::get<CsvFault>(read);
    EXPECT_FALSE(fault.message.empty()) << bytes;
    EXPECT_THAT(MarkFault(bytes, fault), HasSubstr(fault.message)) << bytes;
    return;
  }
  const CsvSchedule& schedule = std::get<CsvSchedule>(read);
  EXPECT_GE(schedule.micro_batches, 1) << bytes;
  EXPECT_EQ(ScheduleOf(WriteCsvSchedule(schedule.pipeline)).pipeline.ops, schedule.pipeline.ops)
      << bytes;
}

TEST(ReadCsvSchedule, AnyBytesAreRefusedOrAreASchedule) {
  constexpr char kBytes[] = "0123456789FBIW,,,\n\r\t \";()_OVERLAP\0\xff";
  const absl::string_view alphabet(kBytes, sizeof(kBytes) - 1);
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    const size_t length = random() % 60;
    while (bytes.size() < length) bytes += alphabet[random() % alphabet.size()];
    CheckAnyBytes(bytes);
  }
}

TEST(ReadCsvSchedule, DamagedSchedulesAreRefusedOrAreASchedule) {
  std::mt19937 random(12);
  int accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string bytes = round % 2 == 0 ? kTwoStages : kV;
    const size_t changes = 1 + random() % 3;
    for (size_t change = 0; change < changes; ++change) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.erase(at, 1 + random() % 4); break;
        case 2: bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 8)); break;
        default: std::swap(bytes[at], bytes[random() % bytes.size()]);
      }
      if (bytes.empty()) break;
    }
    CheckAnyBytes(bytes);
    if (std::holds_alternative<CsvSchedule>(ReadCsvSchedule(bytes))) ++accepted;
  }
  EXPECT_GT(accepted, 50) << "the damage is too great to say anything about what is accepted";
}

}  // namespace
}  // namespace esteira
