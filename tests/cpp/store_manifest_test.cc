#include <sys/stat.h>

#include "everlong/base/crc32c.h"
#include "everlong/store/manifest.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

class StoreManifest : public StoreFolderTest {
 protected:
  void SetUp() override { ASSERT_TRUE(std::filesystem::create_directory(folder_)); }
  [[nodiscard]] std::filesystem::path path() const { return folder_ / "manifest.json"; }

  // A manifest of any text with the checksum that the format asks for.
  void WriteChecked(const std::string& after_checksum) const {
    std::string text = "{\n  \"crc32c\": \"00000000\"" + after_checksum;
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", Crc32c(std::as_bytes(std::span(text))));
    text.replace(text.find("00000000"), 8, digits);
    WriteFile(path(), text);
  }
  [[nodiscard]] Status ReadChecked(const std::string& after_checksum) const {
    WriteChecked(after_checksum);
    return ReadManifest(folder_).status();
  }
};

TEST_F(StoreManifest, ComesBackAsWritten) {
  Manifest manifest = TestManifest();
  manifest.fingerprint.rope = "quotes \" and \\ and \n and ключ";
  manifest.attributes = {{"", ""}, {"ключ", "значение"}, {"crc32c", "00000000"}};
  ASSERT_OK(WriteManifest(folder_, manifest));
  const Result<Manifest> read = ReadManifest(folder_);
  ASSERT_OK(read.status());
  EXPECT_EQ(read->format_version, kFormatVersion);
  EXPECT_EQ(read->fingerprint, manifest.fingerprint);
  EXPECT_EQ(read->geometry, manifest.geometry);
  EXPECT_EQ(read->attributes, manifest.attributes);
  struct stat status = {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "manifest.json.tmp"));
}

TEST_F(StoreManifest, ReplacesTheLastOne) {
  ASSERT_OK(WriteManifest(folder_, TestManifest()));
  Manifest other = TestManifest();
  other.attributes["more"] = std::string(10'000, 'x');
  ASSERT_OK(WriteManifest(folder_, other));
  EXPECT_EQ(ReadManifest(folder_)->attributes, other.attributes);
  ASSERT_OK(WriteManifest(folder_, TestManifest()));
  EXPECT_EQ(ReadManifest(folder_)->attributes, TestManifest().attributes);
}

TEST_F(StoreManifest, RefusesTextsThatAreNotUtf8) {
  Manifest manifest = TestManifest();
  manifest.attributes["broken"] = "\xC3\x28";
  EXPECT_EQ(WriteManifest(folder_, manifest).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadManifest(folder_).status().code(), StatusCode::kNotFound);
}

TEST_F(StoreManifest, RefusesWhatCouldNotBeReadAgain) {
  Manifest manifest = TestManifest();
  manifest.attributes[std::string("nul\0in it", 9)] = std::string("\0", 1);
  ASSERT_OK(WriteManifest(folder_, manifest));
  EXPECT_EQ(ReadManifest(folder_)->attributes, manifest.attributes);
  std::filesystem::remove(path());
  const auto store = Create();
  // Six bytes of JSON each.
  EXPECT_EQ(store->SetAttribute("long", std::string(12 << 20, '\x01')).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(store->manifest().attributes.contains("long"));
  ASSERT_OK(store->SetAttribute(std::string("a\0b", 3), "kept"));
  EXPECT_EQ(Open(true)->manifest().attributes.at(std::string("a\0b", 3)), "kept");
}

TEST_F(StoreManifest, FingerprintNamesEveryFieldThatDiffers) {
  const Manifest manifest = TestManifest();
  EXPECT_OK(CheckFingerprint(manifest, manifest.fingerprint));
  const Status both = CheckFingerprint(manifest, {"weights-2", "rope-1", "tokenizer-2"});
  EXPECT_EQ(both.code(), StatusCode::kModelMismatch);
  for (const char* part : {"weights-1", "weights-2", "tokenizer-1", "tokenizer-2"}) {
    EXPECT_NE(both.message().find(part), std::string::npos) << both.message();
  }
  EXPECT_EQ(both.message().find("rope"), std::string::npos) << both.message();
  EXPECT_EQ(CheckFingerprint(manifest, {"weights-1", "", "tokenizer-1"}).code(), StatusCode::kModelMismatch);
}

TEST_F(StoreManifest, EveryFlippedBitAndEveryTruncationIsFound) {
  ASSERT_OK(WriteManifest(folder_, TestManifest()));
  const std::string good = ReadFile(path());
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    FlipBit(path(), bit);
    const Result<Manifest> read = ReadManifest(folder_);
    if (read.ok()) {  // an upper-case digit of the checksum says the same
      EXPECT_LT(bit / 8, good.find("\",")) << bit;
      EXPECT_EQ(read->attributes, TestManifest().attributes);
      EXPECT_EQ(read->geometry, TestManifest().geometry);
    } else {
      EXPECT_EQ(read.status().code(), StatusCode::kCorrupt) << bit;
      EXPECT_NE(read.status().message().find(path().string()), std::string::npos);
    }
    FlipBit(path(), bit);
  }
  for (size_t length = 0; length < good.size(); ++length) {
    WriteFile(path(), good.substr(0, length));
    EXPECT_EQ(ReadManifest(folder_).status().code(), StatusCode::kCorrupt) << length;
  }
}

TEST_F(StoreManifest, ChecksTypesBehindARightChecksum) {
  const std::string fingerprint = R"("fingerprint": {"weights": "w", "rope": "r", "tokenizer": "t"})";
  const std::string geometry =
      R"("geometry": {"layers": 2, "kv_heads": 1, "head_dim": 8, "page_tokens": 64, "codec": "bf16"})";
  const std::string version = R"("format_version": 1)";
  const std::string attributes = R"("attributes": {"a": "b"})";
  const auto with = [](const std::vector<std::string>& members) {
    std::string text;
    for (const std::string& member : members) text += ",\n" + member;
    return text + "}";
  };
  EXPECT_OK(ReadChecked(with({version, fingerprint, geometry, attributes})));
  EXPECT_OK(ReadChecked(with({"\"from_the_future\": [1]", attributes, geometry, fingerprint, version})));

  const std::vector<std::vector<std::string>> damaged = {
      {},
      {version},
      {version, fingerprint, geometry},
      {fingerprint, geometry, attributes},
      {R"("format_version": "1")", fingerprint, geometry, attributes},
      {R"("format_version": -1)", fingerprint, geometry, attributes},
      {R"("format_version": 1.5)", fingerprint, geometry, attributes},
      {version, R"("fingerprint": [])", geometry, attributes},
      {version, R"("fingerprint": {"weights": 1, "rope": "r", "tokenizer": "t"})", geometry, attributes},
      {version, fingerprint, R"("geometry": null)", attributes},
      {version, fingerprint, R"("geometry": {"layers": 99999999999})", attributes},
      {version, fingerprint, geometry, R"("attributes": {"a": 1})"},
      {version, fingerprint, geometry, R"("attributes": ["a"])"},
      {version, fingerprint,
       R"("geometry": {"layers": 1, "kv_heads": 0, "head_dim": 8, "page_tokens": 64, "codec": "bf16"})", attributes},
  };
  for (const auto& members : damaged) {
    EXPECT_EQ(ReadChecked(with(members)).code(), StatusCode::kCorrupt) << with(members);
  }
  EXPECT_EQ(ReadChecked(", \"format_version\": 1").code(), StatusCode::kCorrupt);
}

TEST_F(StoreManifest, Fp8OfOlderFormatsHasNoCentres) {
  const auto codec_of = [this](int version, const std::string& codec) {
    const std::string text = R"(, "format_version": )" + std::to_string(version) +
                             R"(, "fingerprint": {"weights": "w", "rope": "r", "tokenizer": "t"}, "geometry": )"
                             R"({"layers": 2, "kv_heads": 1, "head_dim": 8, "page_tokens": 64, "codec": ")" +
                             codec + R"("}, "attributes": {}})";
    EXPECT_OK(ReadChecked(text));
    return ReadManifest(folder_)->geometry.codec;
  };
  for (const std::string codec : {"e4m3", "e5m2"}) {
    EXPECT_EQ(codec_of(1, codec), codec + "-plain");
    EXPECT_EQ(codec_of(2, codec), codec + "-plain");
    EXPECT_EQ(codec_of(3, codec), codec);
    EXPECT_EQ(codec_of(3, codec + "-plain"), codec + "-plain");
  }
  for (const std::string codec : {"bf16", "fp32", "e4m3x"}) EXPECT_EQ(codec_of(2, codec), codec);
}

TEST_F(StoreManifest, ANewerFormatSaysSo) {
  // Only the checksum and the version are promised to keep their place.
  const Status status = ReadChecked(", \"format_version\": 4, \"all_else\": \"new\"}");
  EXPECT_EQ(status.code(), StatusCode::kNewerFormat);
  EXPECT_NE(status.message().find(folder_.string()), std::string::npos);
  EXPECT_EQ(MemoryStore::Open(folder_, false).status().code(), StatusCode::kNewerFormat);
  EXPECT_EQ(MemoryStore::Open(folder_, true).status().code(), StatusCode::kNewerFormat);
}

}  // namespace
}  // namespace everlong::store
