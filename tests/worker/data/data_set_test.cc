#include "worker/data/data_set.h"

#include <gmock/gmock.h>

#include "tests/worker/data/temporary_files.h"

namespace esteira {
namespace {

using testing::HasSubstr;

class DataSetTest : public TemporaryFiles {
 protected:
  DataSetTest() {
    job_.sequence_length = 3;
    job_.seed = 5;
    job_.model.vocab_size = 256;
  }

  std::string Text(const std::string& name, int num_samples) {
    std::string text;
    for (int i = 0; i <= 3 * num_samples; ++i) text += static_cast<char>(i % 251);
    return Write(name, text);
  }

  static std::vector<int32_t> Inputs(const DataSet& data, int64_t first, int64_t count) {
    std::vector<int32_t> inputs(static_cast<size_t>(count) * 3);
    std::vector<int32_t> targets(inputs.size());
    EXPECT_TRUE(data.Read(first, count, inputs, targets).ok());
    return inputs;
  }

  JobSpec job_;
};

TEST_F(DataSetTest, BatchSizeChangesNothing) {
  auto data = DataSet::Open({{Text("a", 17), 2}, {Text("b", 5), 1}}, job_, true);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->num_samples(), 22);
  const std::vector<int32_t> whole = Inputs(**data, 0, 60);
  for (const int64_t batch : {1, 4, 7, 30}) {
    std::vector<int32_t> pieces;
    for (int64_t first = 0; first < 60; first += batch) {
      const auto piece = Inputs(**data, first, std::min(batch, 60 - first));
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(pieces, whole) << "batch " << batch;
  }
}

TEST_F(DataSetTest, ReadsTheSampleThatTheSamplerNames) {
  const std::string path = Text("a", 17);
  auto data = DataSet::Open({{path, 1}}, job_, true);
  ASSERT_TRUE(data.ok());
  for (int64_t i = 0; i < 34; ++i) {
    const auto sample = static_cast<int32_t>((*data)->At(i).sample);
    EXPECT_THAT(Inputs(**data, i, 1),
                testing::ElementsAre(3 * sample, 3 * sample + 1, 3 * sample + 2));
  }
}

TEST_F(DataSetTest, ValidationIsInFileOrderAndWraps) {
  auto data = DataSet::Open({{Text("a", 2), 9}, {Text("b", 3), 1}}, job_, false);
  ASSERT_TRUE(data.ok());
  std::vector<SampleId> order;
  for (int64_t i = 0; i < 7; ++i) order.push_back((*data)->At(i));
  const std::vector<SampleId> expected = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 2}, {0, 0}, {0, 1}};
  EXPECT_EQ(order, expected);
  for (int64_t i = 0; i < 7; ++i) {
    EXPECT_EQ((*data)->NumberOf(order[static_cast<size_t>(i)]), i % 5);
  }
}

TEST_F(DataSetTest, AnEmptyReadIsLegal) {
  auto data = DataSet::Open({{Text("a", 1), 1}}, job_, true);
  ASSERT_TRUE(data.ok());
  EXPECT_TRUE(Inputs(**data, 3, 0).empty());
}

TEST_F(DataSetTest, ErrorsNameTheFile) {
  EXPECT_FALSE(DataSet::Open({}, job_, true).ok());
  EXPECT_THAT(DataSet::Open({{Text("a", 1), 1}, {root_ + "/b", 1}}, job_, true).status().ToString(),
              HasSubstr(root_ + "/b"));
  EXPECT_THAT(DataSet::Open({{Text("a", 1), 0}}, job_, true).status().ToString(),
              HasSubstr("weight 0"));
  EXPECT_THAT(DataSet::Open({{Text("a", 1), std::nan("")}}, job_, true).status().ToString(),
              HasSubstr("weight nan"));
}

}  // namespace
}  // namespace esteira
