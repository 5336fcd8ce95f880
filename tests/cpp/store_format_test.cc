// A second reader, written from docs/format.md alone: the written format and the code say the same.
#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <variant>

#include "everlong/base/crc32c.h"
#include "store_fixture.h"
#include "store_sql.h"

namespace everlong::store {
namespace {

uint32_t CrcOf(std::string_view bytes) { return Crc32c(std::as_bytes(std::span(bytes.data(), bytes.size()))); }

template <class T>
T At(std::string_view bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

using Row = PlainSql::Row;
using Columns = std::vector<std::variant<int64_t, double, std::string>>;

// The first columns of a row, of the types that `like` has.
Columns ColumnsOf(const Row& row, const Columns& like) {
  Columns columns = like;
  for (size_t i = 0; i < columns.size(); ++i) {
    const auto column = static_cast<int>(i);
    if (auto* integer = std::get_if<int64_t>(&columns[i])) *integer = row.Integer(column);
    if (auto* real = std::get_if<double>(&columns[i])) *real = row.Real(column);
    if (auto* bytes = std::get_if<std::string>(&columns[i])) *bytes = row.Bytes(column);
  }
  return columns;
}

// A row checksum's input, as the section "Row checksums" has it.
std::string Values(const Columns& values) {
  std::string text;
  const auto put = [&text](const auto& number) { text.append(reinterpret_cast<const char*>(&number), sizeof number); };
  for (const auto& value : values) {
    if (const auto* integer = std::get_if<int64_t>(&value)) put(*integer);
    if (const auto* real = std::get_if<double>(&value)) put(*real);
    if (const auto* bytes = std::get_if<std::string>(&value)) {
      put(static_cast<int64_t>(bytes->size()));
      text += *bytes;
    }
  }
  return text;
}

class StoreFormat : public StoreFolderTest {
 protected:
  void SetUp() override {
    const auto store = Create();
    for (uint64_t i = 0; i < 3; ++i) {
      blocks_.emplace_back(i, 20 + 25 * static_cast<int64_t>(i), 1000 * static_cast<int64_t>(i));
      ASSERT_OK(AppendTo(*store, blocks_.back().Draft()).status());
    }
    ASSERT_OK(store->Forget(std::vector<int64_t>{2}));
  }

  [[nodiscard]] std::filesystem::path catalog() const { return folder_ / "catalog.sqlite"; }

  std::vector<TestBlock> blocks_;
};

TEST_F(StoreFormat, ASegmentIsScannedWithoutTheCatalog) {
  const std::string segment = ReadFile(folder_ / "segments" / "000001.kvseg");
  ASSERT_EQ(segment.size() % 4096, 0U);
  std::map<std::pair<uint64_t, uint32_t>, size_t> found;  // block, page -> offset
  size_t at = 0;
  while (at < segment.size()) {
    const std::string_view record = std::string_view(segment).substr(at);
    ASSERT_EQ(record.substr(0, 8), "EVLKVREC");
    EXPECT_EQ(At<uint32_t>(record, 8), 1U);
    EXPECT_EQ(At<uint32_t>(record, 12), 1U);
    const auto block = At<uint64_t>(record, 16);
    const auto page = At<uint32_t>(record, 24);
    const auto tokens = At<uint32_t>(record, 28);
    const auto parts = At<uint32_t>(record, 32);
    const auto header_bytes = At<uint32_t>(record, 36);
    const auto part_bytes = At<uint64_t>(record, 40);
    ASSERT_EQ(parts, static_cast<uint32_t>(kLayers));
    ASSERT_EQ(header_bytes, 4096U);
    std::string header(record.substr(0, header_bytes));
    header.replace(48, 4, 4, '\0');
    EXPECT_EQ(At<uint32_t>(record, 48), CrcOf(header));

    ASSERT_TRUE(block >= 1 && block <= blocks_.size());
    const TestBlock& expected = blocks_[block - 1];
    ASSERT_LT(page, static_cast<uint32_t>(expected.pages()));
    EXPECT_EQ(tokens, std::min<int64_t>(kPageTokens, expected.span.size() - int64_t{page} * kPageTokens));
    for (uint32_t part = 0; part < parts; ++part) {
      const std::string_view bytes = record.substr(header_bytes + part * part_bytes, part_bytes);
      EXPECT_EQ(At<uint32_t>(record, 52 + 4 * part), CrcOf(bytes));
      const std::vector<std::byte> wanted = expected.Parts(static_cast<int32_t>(page), static_cast<int32_t>(part), 1);
      EXPECT_EQ(bytes, std::string_view(reinterpret_cast<const char*>(wanted.data()), wanted.size()));
    }
    found[{block, page}] = at;
    at += header_bytes + (parts * part_bytes + 4095) / 4096 * 4096;
  }
  EXPECT_EQ(found.size(), 2U + 3U + 5U);  // the forgotten block's bytes too
}

TEST_F(StoreFormat, BlocksAreReadWithPlainSql) {
  PlainSql sql(catalog());
  EXPECT_EQ(sql.Rows("PRAGMA application_id", [](Row row) { EXPECT_EQ(row.Integer(0), 0x45564C47); }), 1);
  EXPECT_EQ(sql.Rows("PRAGMA user_version", [](Row row) { EXPECT_EQ(row.Integer(0), 2); }), 1);
  EXPECT_EQ(sql.Rows("PRAGMA journal_mode", [](Row row) { EXPECT_EQ(row.Bytes(0), "wal"); }), 1);
  int64_t id = 0;
  const auto expect_block = [&](Row row) {
    const TestBlock& block = blocks_[static_cast<size_t>(id++)];
    const std::string ids = row.Bytes(12);
    EXPECT_EQ(ids, TextOf(std::as_bytes(std::span(block.token_ids))));
    const Columns columns = {id,
                             int64_t{id == 2 ? 1 : 0},
                             block.stream,
                             block.span.begin,
                             block.span.end,
                             int64_t{block.sink_tokens},
                             block.created_at,
                             int64_t{block.pages()},
                             std::ssize(block.payload)};
    EXPECT_EQ(ColumnsOf(row, columns), columns);
    EXPECT_EQ(row.Integer(10), int64_t{CrcOf(ids)});
    EXPECT_EQ(row.Bytes(11), block.source);
    EXPECT_EQ(row.Integer(13), static_cast<int64_t>(block.role));
    Columns values = columns;
    values.insert(values.end(), {row.Integer(10), block.source, std::ssize(block.tags)});
    values.insert(values.end(), block.tags.begin(), block.tags.end());
    if (block.role != Role::kRead) values.emplace_back(row.Integer(13));
    EXPECT_EQ(row.Integer(9), int64_t{CrcOf(Values(values))});
  };
  EXPECT_EQ(sql.Rows("SELECT id, state, stream, span_begin, span_end, sink_tokens, created_at, pages, payload_bytes, "
                     "crc, token_crc, source, token_ids, role FROM blocks ORDER BY id",
                     expect_block),
            3);
  int tag = 0;
  EXPECT_EQ(sql.Rows("SELECT block, position, tag FROM tags ORDER BY block, position",
                     [&](Row row) {
                       const Columns columns = {int64_t{tag / 2 + 1}, int64_t{tag % 2},
                                                tag % 2 == 0 ? "first" : "second"};
                       EXPECT_EQ(ColumnsOf(row, columns), columns);
                       ++tag;
                     }),
            6);
}

TEST_F(StoreFormat, PagesAreReadWithPlainSql) {
  const std::string segment = ReadFile(folder_ / "segments" / "000001.kvseg");
  const auto expect_page = [&](Row row) {
    const auto at = static_cast<size_t>(row.Integer(4));
    const auto part_bytes = static_cast<size_t>(row.Integer(6));
    EXPECT_EQ(row.Integer(3), 1);
    EXPECT_EQ(at % 4096, 0U);
    EXPECT_EQ(static_cast<size_t>(row.Integer(5)), 4096 + (kLayers * part_bytes + 4095) / 4096 * 4096);
    EXPECT_EQ(At<uint64_t>(segment, at + 16), static_cast<uint64_t>(row.Integer(0)));
    EXPECT_EQ(At<uint32_t>(segment, at + 24), static_cast<uint32_t>(row.Integer(2)));
    EXPECT_EQ(row.Bytes(7), segment.substr(at + 52, size_t{4} * kLayers));
    EXPECT_EQ(row.Integer(8), int64_t{CrcOf(Values(ColumnsOf(row, {0, 0, 0, 0, 0, 0, 0, ""})))});
  };
  EXPECT_EQ(PlainSql(catalog()).Rows("SELECT block, kind, page, segment, record_offset, record_bytes, part_bytes, "
                                     "part_crcs, crc FROM pages ORDER BY block, kind, page",
                                     expect_page),
            2 + 3 + 5);
}

TEST_F(StoreFormat, TensorsAreReadWithPlainSql) {
  ASSERT_EQ(AppendAll(*Open(), blocks_[0]).value(), 4);
  PlainSql sql(catalog());
  // The record: one part, a safetensors file.
  const std::string segment = ReadFile(folder_ / "segments" / "000001.kvseg");
  std::string part;
  sql.Rows("SELECT record_offset, part_bytes, page FROM pages WHERE block = 4 AND kind = 5", [&](Row row) {
    const auto at = static_cast<size_t>(row.Integer(0));
    part = segment.substr(at + 4096, static_cast<size_t>(row.Integer(1)));
    EXPECT_EQ(row.Integer(2), 0);
    EXPECT_EQ(At<uint32_t>(segment, at + 12), 5U);
    EXPECT_EQ(At<uint64_t>(segment, at + 16), 4U);
    EXPECT_EQ(At<uint32_t>(segment, at + 28), static_cast<uint32_t>(blocks_[0].span.size()));
    EXPECT_EQ(At<uint32_t>(segment, at + 32), 1U);
    EXPECT_EQ(At<uint32_t>(segment, at + 52), CrcOf(part));
  });
  ASSERT_FALSE(part.empty());
  const auto data = static_cast<int64_t>(8 + At<uint64_t>(part, 0));
  const std::vector<TensorView> tensors = blocks_[0].Tensors();
  size_t count = 0;
  const auto expect_tensor = [&](Row row) {
    ASSERT_LT(count, tensors.size());
    const TensorView& tensor = tensors[count++];
    ASSERT_GE(row.Integer(5), data);
    const std::string own = part.substr(static_cast<size_t>(row.Integer(5)), static_cast<size_t>(row.Integer(6)));
    EXPECT_EQ(own, TextOf(tensor.bytes));
    const Columns columns = {int64_t{4},
                             tensor.name,
                             row.Integer(2),
                             tensor.dtype,
                             TextOf(std::as_bytes(std::span(tensor.shape))),
                             row.Integer(5),
                             row.Integer(6),
                             int64_t{CrcOf(own)},
                             int64_t{3}};
    EXPECT_EQ(ColumnsOf(row, columns), columns);
    EXPECT_EQ(row.Integer(9), int64_t{CrcOf(Values(columns))});
  };
  EXPECT_EQ(sql.Rows("SELECT block, name, kind, dtype, shape, data_offset, data_bytes, data_crc, record_tensors, crc "
                     "FROM tensors ORDER BY name",
                     expect_tensor),
            3);
}

TEST_F(StoreFormat, TheGraphIsReadWithPlainSql) {
  ASSERT_EQ(AppendAll(*Open(), blocks_[0]).value(), 4);
  PlainSql sql(catalog());
  bool is_block = true;
  const auto expect_node = [&](Row row) {
    const Columns columns = is_block ? Columns{int64_t{4}, int64_t{1}, int64_t{0}, int64_t{0}, 0.0}
                                     : Columns{int64_t{1} << 35, int64_t{2}, int64_t{1}, int64_t{3}, 0.3};
    EXPECT_EQ(ColumnsOf(row, columns), columns);
    EXPECT_EQ(row.Bytes(8).size(), is_block ? 8U : 0U);
    EXPECT_EQ(row.Bytes(9).size(), is_block ? 0U : 16U);
    if (is_block) {
      EXPECT_EQ(At<float>(row.Bytes(8), 4), 0.5F);
    } else {
      EXPECT_EQ(At<double>(row.Bytes(9), 8), 0.2);
    }
    Columns values = columns;
    values.insert(values.end(), {row.Real(5), row.Real(6), row.Bytes(8), row.Bytes(9)});
    EXPECT_EQ(row.Integer(7), int64_t{CrcOf(Values(values))});
    is_block = false;
  };
  EXPECT_EQ(sql.Rows("SELECT id, kind, level, count, square_sum, created_at, updated_at, crc, vector, linear_sum "
                     "FROM nodes ORDER BY id",
                     expect_node),
            2);
  const auto expect_edge = [](Row row) {
    const Columns columns = {int64_t{4}, int64_t{1} << 35, int64_t{3}, 0.25, 8.0};
    EXPECT_EQ(ColumnsOf(row, columns), columns);
    EXPECT_EQ(row.Integer(5), int64_t{CrcOf(Values(columns))});
  };
  EXPECT_EQ(sql.Rows("SELECT source, target, kind, weight, time, crc FROM edges", expect_edge), 1);
}

TEST_F(StoreFormat, TheManifestCarriesItsOwnChecksum) {
  std::string text = ReadFile(folder_ / "manifest.json");
  ASSERT_TRUE(text.starts_with("{\n  \"crc32c\": \""));
  const std::string digits = text.substr(15, 8);
  text.replace(15, 8, "00000000");
  std::array<char, 9> expected = {};
  std::snprintf(expected.data(), expected.size(), "%08x", CrcOf(text));
  EXPECT_EQ(digits, expected.data());
}

}  // namespace
}  // namespace everlong::store
