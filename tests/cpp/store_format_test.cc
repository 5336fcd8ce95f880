// A second reader, written from docs/format.md alone: the written format and the code say the same.
#include <sqlite3.h>

#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <variant>

#include "everlong/base/crc32c.h"
#include "store_fixture.h"

namespace everlong::store {
namespace {

uint32_t CrcOf(std::string_view bytes) { return Crc32c(std::as_bytes(std::span(bytes.data(), bytes.size()))); }

template <class T>
T At(std::string_view bytes, size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// A row checksum's input, as the section "Row checksums" has it.
std::string Values(const std::vector<std::variant<int64_t, double, std::string>>& values) {
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

TEST_F(StoreFormat, TheCatalogIsReadWithPlainSql) {
  sqlite3* connection = nullptr;
  ASSERT_EQ(sqlite3_open_v2((folder_ / "catalog.sqlite").c_str(), &connection, SQLITE_OPEN_READONLY, nullptr),
            SQLITE_OK);
  const auto rows = [connection](const char* sql, const auto& each) {
    sqlite3_stmt* statement = nullptr;
    ASSERT_EQ(sqlite3_prepare_v2(connection, sql, -1, &statement, nullptr), SQLITE_OK) << sqlite3_errmsg(connection);
    while (sqlite3_step(statement) == SQLITE_ROW) each(statement);
    sqlite3_finalize(statement);
  };
  const auto integer = [](sqlite3_stmt* row, int column) -> int64_t { return sqlite3_column_int64(row, column); };
  const auto bytes = [](sqlite3_stmt* row, int column) {
    const auto* data = static_cast<const char*>(sqlite3_column_blob(row, column));
    return std::string(data == nullptr ? "" : data, static_cast<size_t>(sqlite3_column_bytes(row, column)));
  };
  rows("PRAGMA application_id", [&](sqlite3_stmt* row) { EXPECT_EQ(integer(row, 0), 0x45564C47); });
  rows("PRAGMA user_version", [&](sqlite3_stmt* row) { EXPECT_EQ(integer(row, 0), 2); });
  rows("PRAGMA journal_mode", [&](sqlite3_stmt* row) { EXPECT_EQ(bytes(row, 0), "wal"); });

  int count = 0;
  rows(
      "SELECT id, state, stream, span_begin, span_end, sink_tokens, created_at, pages, payload_bytes, crc, token_crc, "
      "source, token_ids, role FROM blocks ORDER BY id",
      [&](sqlite3_stmt* row) {
        const TestBlock& block = blocks_[static_cast<size_t>(count++)];
        EXPECT_EQ(integer(row, 0), count);
        EXPECT_EQ(integer(row, 1), count == 2 ? 1 : 0);
        EXPECT_EQ(integer(row, 2), block.stream);
        EXPECT_EQ(integer(row, 3), block.span.begin);
        EXPECT_EQ(integer(row, 4), block.span.end);
        EXPECT_EQ(integer(row, 5), block.sink_tokens);
        EXPECT_EQ(sqlite3_column_double(row, 6), block.created_at);
        EXPECT_EQ(integer(row, 7), block.pages());
        EXPECT_EQ(integer(row, 8), static_cast<int64_t>(block.payload.size()));
        EXPECT_EQ(bytes(row, 11), block.source);
        const std::string ids = bytes(row, 12);
        ASSERT_EQ(ids.size(), 4 * block.token_ids.size());
        EXPECT_EQ(std::memcmp(ids.data(), block.token_ids.data(), ids.size()), 0);
        EXPECT_EQ(integer(row, 10), int64_t{CrcOf(ids)});
        std::vector<std::variant<int64_t, double, std::string>> values = {
            integer(row, 0),  integer(row, 1), integer(row, 2), integer(row, 3),  integer(row, 4), integer(row, 5),
            block.created_at, integer(row, 7), integer(row, 8), integer(row, 10), bytes(row, 11)};
        values.emplace_back(static_cast<int64_t>(block.tags.size()));
        for (const std::string& tag : block.tags) values.emplace_back(tag);
        EXPECT_EQ(integer(row, 13), static_cast<int64_t>(block.role));
        if (block.role != Role::kRead) values.emplace_back(integer(row, 13));
        EXPECT_EQ(integer(row, 9), int64_t{CrcOf(Values(values))});
      });
  EXPECT_EQ(count, 3);

  count = 0;
  rows("SELECT block, position, tag FROM tags ORDER BY block, position", [&](sqlite3_stmt* row) {
    EXPECT_EQ(integer(row, 0), count / 2 + 1);
    EXPECT_EQ(integer(row, 1), count % 2);
    EXPECT_EQ(bytes(row, 2), count % 2 == 0 ? "first" : "second");
    ++count;
  });
  EXPECT_EQ(count, 6);

  const std::string segment = ReadFile(folder_ / "segments" / "000001.kvseg");
  count = 0;
  rows(
      "SELECT block, kind, page, segment, record_offset, record_bytes, part_bytes, part_crcs, crc FROM pages "
      "ORDER BY block, kind, page",
      [&](sqlite3_stmt* row) {
        ++count;
        const auto at = static_cast<size_t>(integer(row, 4));
        const auto part_bytes = static_cast<size_t>(integer(row, 6));
        EXPECT_EQ(integer(row, 3), 1);
        EXPECT_EQ(at % 4096, 0U);
        EXPECT_EQ(static_cast<size_t>(integer(row, 5)), 4096 + (kLayers * part_bytes + 4095) / 4096 * 4096);
        EXPECT_EQ(At<uint64_t>(segment, at + 16), static_cast<uint64_t>(integer(row, 0)));
        EXPECT_EQ(At<uint32_t>(segment, at + 24), static_cast<uint32_t>(integer(row, 2)));
        const std::string crcs = bytes(row, 7);
        EXPECT_EQ(crcs, segment.substr(at + 52, size_t{4} * kLayers));
        EXPECT_EQ(integer(row, 8),
                  int64_t{CrcOf(Values({integer(row, 0), integer(row, 1), integer(row, 2), integer(row, 3),
                                        integer(row, 4), integer(row, 5), integer(row, 6), crcs}))});
      });
  EXPECT_EQ(count, 2 + 3 + 5);
  sqlite3_close(connection);
}

TEST_F(StoreFormat, TensorsAndGraphAreReadWithPlainSql) {
  {
    const auto store = Open();
    ASSERT_EQ(AppendAll(*store, blocks_[0]).value(), 4);
  }
  sqlite3* connection = nullptr;
  ASSERT_EQ(sqlite3_open_v2((folder_ / "catalog.sqlite").c_str(), &connection, SQLITE_OPEN_READONLY, nullptr),
            SQLITE_OK);
  const auto rows = [connection](const char* sql, const auto& each) {
    sqlite3_stmt* statement = nullptr;
    ASSERT_EQ(sqlite3_prepare_v2(connection, sql, -1, &statement, nullptr), SQLITE_OK) << sqlite3_errmsg(connection);
    while (sqlite3_step(statement) == SQLITE_ROW) each(statement);
    sqlite3_finalize(statement);
  };
  const auto integer = [](sqlite3_stmt* row, int column) -> int64_t { return sqlite3_column_int64(row, column); };
  const auto bytes = [](sqlite3_stmt* row, int column) {
    const auto* data = static_cast<const char*>(sqlite3_column_blob(row, column));
    return std::string(data == nullptr ? "" : data, static_cast<size_t>(sqlite3_column_bytes(row, column)));
  };
  // The record: one part, a safetensors file.
  const std::string segment = ReadFile(folder_ / "segments" / "000001.kvseg");
  std::string part;
  rows("SELECT record_offset, part_bytes, page FROM pages WHERE block = 4 AND kind = 5", [&](sqlite3_stmt* row) {
    const auto at = static_cast<size_t>(integer(row, 0));
    part = segment.substr(at + 4096, static_cast<size_t>(integer(row, 1)));
    EXPECT_EQ(integer(row, 2), 0);
    EXPECT_EQ(At<uint32_t>(segment, at + 12), 5U);
    EXPECT_EQ(At<uint64_t>(segment, at + 16), 4U);
    EXPECT_EQ(At<uint32_t>(segment, at + 28), static_cast<uint32_t>(blocks_[0].span.size()));
    EXPECT_EQ(At<uint32_t>(segment, at + 32), 1U);
    EXPECT_EQ(At<uint32_t>(segment, at + 52), CrcOf(part));
  });
  ASSERT_FALSE(part.empty());
  const size_t data = 8 + At<uint64_t>(part, 0);
  const std::vector<TensorView> tensors = blocks_[0].Tensors();
  size_t count = 0;
  rows(
      "SELECT block, name, kind, dtype, shape, data_offset, data_bytes, data_crc, record_tensors, crc FROM tensors "
      "ORDER BY name",
      [&](sqlite3_stmt* row) {
        ASSERT_LT(count, tensors.size());
        const TensorView& tensor = tensors[count++];
        EXPECT_EQ(integer(row, 0), 4);
        EXPECT_EQ(bytes(row, 1), tensor.name);
        EXPECT_EQ(bytes(row, 3), tensor.dtype);
        const std::string shape = bytes(row, 4);
        ASSERT_EQ(shape.size(), 8 * tensor.shape.size());
        EXPECT_EQ(std::memcmp(shape.data(), tensor.shape.data(), shape.size()), 0);
        ASSERT_GE(integer(row, 5), static_cast<int64_t>(data));
        const std::string own = part.substr(static_cast<size_t>(integer(row, 5)), static_cast<size_t>(integer(row, 6)));
        EXPECT_EQ(own, std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()));
        EXPECT_EQ(integer(row, 7), int64_t{CrcOf(own)});
        EXPECT_EQ(integer(row, 8), 3);
        EXPECT_EQ(integer(row, 9),
                  int64_t{CrcOf(Values({int64_t{4}, tensor.name, integer(row, 2), tensor.dtype, shape, integer(row, 5),
                                        integer(row, 6), integer(row, 7), integer(row, 8)}))});
      });
  EXPECT_EQ(count, 3U);

  count = 0;
  rows(
      "SELECT id, kind, level, count, square_sum, created_at, updated_at, crc, vector, linear_sum FROM nodes "
      "ORDER BY id",
      [&](sqlite3_stmt* row) {
        const bool is_block = ++count == 1;
        EXPECT_EQ(integer(row, 0), is_block ? 4 : int64_t{1} << 35);
        EXPECT_EQ(integer(row, 1), is_block ? 1 : 2);
        EXPECT_EQ(integer(row, 2), is_block ? 0 : 1);
        EXPECT_EQ(integer(row, 3), is_block ? 0 : 3);
        EXPECT_EQ(sqlite3_column_double(row, 4), is_block ? 0 : 0.3);
        EXPECT_EQ(bytes(row, 8).size(), is_block ? 8U : 0U);
        EXPECT_EQ(bytes(row, 9).size(), is_block ? 0U : 16U);
        if (is_block) {
          EXPECT_EQ(At<float>(bytes(row, 8), 4), 0.5F);
        } else {
          EXPECT_EQ(At<double>(bytes(row, 9), 8), 0.2);
        }
        EXPECT_EQ(integer(row, 7),
                  int64_t{CrcOf(Values({integer(row, 0), integer(row, 1), integer(row, 2), integer(row, 3),
                                        sqlite3_column_double(row, 4), sqlite3_column_double(row, 5),
                                        sqlite3_column_double(row, 6), bytes(row, 8), bytes(row, 9)}))});
      });
  EXPECT_EQ(count, 2U);

  count = 0;
  rows("SELECT source, target, kind, weight, time, crc FROM edges", [&](sqlite3_stmt* row) {
    ++count;
    EXPECT_EQ(integer(row, 0), 4);
    EXPECT_EQ(integer(row, 1), int64_t{1} << 35);
    EXPECT_EQ(integer(row, 2), 3);
    EXPECT_EQ(sqlite3_column_double(row, 3), 0.25);
    EXPECT_EQ(sqlite3_column_double(row, 4), 8);
    EXPECT_EQ(integer(row, 5), int64_t{CrcOf(Values({integer(row, 0), integer(row, 1), integer(row, 2),
                                                     sqlite3_column_double(row, 3), sqlite3_column_double(row, 4)}))});
  });
  EXPECT_EQ(count, 1U);
  sqlite3_close(connection);
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
