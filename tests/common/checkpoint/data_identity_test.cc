#include "common/checkpoint/data_identity.h"

#include <gmock/gmock.h>

#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "tests/fakes/fake_file_system.h"

namespace esteira {
namespace {

class DataIdentityTest : public testing::Test {
 protected:
  DataIdentity Of(const std::string& bytes) {
    CHECK(files_.CreateDirectories("/data").ok());
    CHECK(WriteFileAtomically(files_, "/data/a", bytes).ok());
    const auto identities = IdentifyData(files_, {{"/data/a", 0.5}});
    CHECK(identities.ok() && identities->size() == 1);
    return identities->front();
  }

  FakeFileSystem files_;
};

TEST_F(DataIdentityTest, SmallFilesAreReadWhole) {
  for (const std::string& bytes : {std::string(), std::string("x"), std::string(16384, 'y'),
                                   std::string(16385, 'z'), std::string(32768, 'a') + "b"}) {
    const DataIdentity identity = Of(bytes);
    EXPECT_EQ(identity.path, "/data/a");
    EXPECT_EQ(identity.weight, 0.5);
    EXPECT_EQ(identity.bytes, static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(identity.sha256, Sha256Hex(bytes)) << bytes.size();
  }
}

TEST_F(DataIdentityTest, ChangesAtTheEndsAndThroughoutALargeFileAreSeen) {
  const std::string bytes(5'000'001, 'x');
  const DataIdentity identity = Of(bytes);
  EXPECT_EQ(Of(bytes), identity);
  std::string changed = bytes;
  changed.front() = 'y';
  EXPECT_NE(Of(changed).sha256, identity.sha256);
  changed = bytes;
  changed.back() = 'y';
  EXPECT_NE(Of(changed).sha256, identity.sha256);
  changed = bytes;
  for (size_t i = 2'000'000; i < 2'100'000; ++i) changed[i] = 'y';
  EXPECT_NE(Of(changed).sha256, identity.sha256);
}

TEST_F(DataIdentityTest, AMissingFileIsNamed) {
  const auto identities = IdentifyData(files_, {{"/nowhere", 1}});
  EXPECT_EQ(identities.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(identities.status().ToString(), testing::HasSubstr("/nowhere"));
  EXPECT_TRUE(IdentifyData(files_, {})->empty());
}

}  // namespace
}  // namespace esteira
