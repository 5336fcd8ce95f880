// A catalog as another program opens it.
#pragma once

#include <sqlite3.h>

#include <filesystem>
#include <memory>
#include <string>

namespace everlong::fuzz {

// SQL knows these functions besides its own:
//   crc32c(BLOB)                 of its bytes
//   row_crc(TYPES, VALUE, ...)   of a row (store/row_checksum.h). A letter a value says how the core reads it: i, n (in
//                                32 bits), u (in 32 bits, unsigned), r, t, b; o is an i that counts where it is not 0;
//                                h are texts in hexadecimal digits, each before a comma, and their number.
class PlainCatalog {
 public:
  explicit PlainCatalog(const std::filesystem::path& folder);

  // Whether there is a catalog, and none of its files leads out of the folder.
  [[nodiscard]] bool ok() const { return connection_ != nullptr; }
  // What fails does nothing.
  void Run(const std::string& sql);
  // The log stays beside the catalog when this goes.
  void KeepLog();

  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;
  [[nodiscard]] Statement Prepare(const std::string& sql);

 private:
  struct Close {
    void operator()(sqlite3* connection) const { sqlite3_close(connection); }
  };
  std::unique_ptr<sqlite3, Close> connection_;
};

}  // namespace everlong::fuzz
