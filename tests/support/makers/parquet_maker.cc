#include "tests/support/makers/parquet_maker.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/util/compression.h>
#include <arrow/util/float16.h>
#include <parquet/arrow/writer.h>

#include <map>
#include <stdexcept>

namespace ringfeed::testing {
namespace {

void require(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}
template <typename T>
T value_of(arrow::Result<T> result) {
  require(result.status());
  return std::move(result).ValueUnsafe();
}

std::shared_ptr<arrow::DataType> type_of(const std::string& name) {
  static const std::map<std::string, std::shared_ptr<arrow::DataType>> types = {
      {"string", arrow::utf8()},   {"large_string", arrow::large_utf8()},
      {"binary", arrow::binary()}, {"bool", arrow::boolean()},
      {"int8", arrow::int8()},     {"int16", arrow::int16()},
      {"int32", arrow::int32()},   {"int64", arrow::int64()},
      {"uint8", arrow::uint8()},   {"uint16", arrow::uint16()},
      {"uint32", arrow::uint32()}, {"uint64", arrow::uint64()},
      {"float", arrow::float32()}, {"double", arrow::float64()},
      {"date32", arrow::date32()}, {"timestamp", arrow::timestamp(arrow::TimeUnit::MICRO)},
      {"null", arrow::null()},
  };
  const auto found = types.find(name);
  if (found == types.end()) throw std::runtime_error("no such type: " + name);
  return found->second;
}

std::shared_ptr<arrow::Array> array_of(const MadeColumn& column) {
  if (column.type == "dictionary") {
    arrow::StringDictionary32Builder builder;
    for (const auto& value : column.values) {
      require(value ? builder.Append(*value) : builder.AppendNull());
    }
    return value_of(builder.Finish());
  }
  if (column.type == "half") {
    arrow::HalfFloatBuilder builder;
    for (const auto& value : column.values) {
      require(value ? builder.Append(arrow::util::Float16(std::stof(*value)).bits())
                    : builder.AppendNull());
    }
    return value_of(builder.Finish());
  }
  if (column.type == "string_view") {
    arrow::StringViewBuilder builder;
    for (const auto& value : column.values) {
      require(value ? builder.Append(*value) : builder.AppendNull());
    }
    return value_of(builder.Finish());
  }
  if (column.type == "decimal") {
    arrow::Decimal128Builder builder(arrow::decimal128(10, 2));
    for (const auto& value : column.values) {
      require(value ? builder.Append(arrow::Decimal128(std::stoll(*value))) : builder.AppendNull());
    }
    return value_of(builder.Finish());
  }
  if (column.type == "list") {
    arrow::ListBuilder builder(arrow::default_memory_pool(),
                               std::make_shared<arrow::Int64Builder>());
    for (const auto& value : column.values) {
      require(builder.Append());
      if (value) {
        require(
            static_cast<arrow::Int64Builder*>(builder.value_builder())->Append(std::stoll(*value)));
      }
    }
    return value_of(builder.Finish());
  }
  if (column.type == "struct") {
    const std::shared_ptr<arrow::Array> inner = array_of({"inner", "string", column.values, true});
    return value_of(arrow::StructArray::Make({inner}, std::vector<std::string>{"inner"}));
  }
  const std::shared_ptr<arrow::DataType> type = type_of(column.type);
  const std::unique_ptr<arrow::ArrayBuilder> builder = value_of(arrow::MakeBuilder(type));
  for (const auto& value : column.values) {
    require(value ? builder->AppendScalar(*value_of(arrow::Scalar::Parse(type, *value)))
                  : builder->AppendNull());
  }
  return value_of(builder->Finish());
}

}  // namespace

void write_parquet(const std::string& path, const std::vector<MadeColumn>& columns,
                   const MadeFile& file) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const MadeColumn& column : columns) {
    arrays.push_back(array_of(column));
    fields.push_back(arrow::field(column.name, arrays.back()->type(), column.nullable));
  }
  const auto table = arrow::Table::Make(arrow::schema(fields), arrays);
  parquet::WriterProperties::Builder properties;
  properties.compression(value_of(arrow::util::Codec::GetCompressionType(file.compression)));
  properties.data_pagesize(file.page_bytes);
  properties.write_batch_size(64);
  if (!file.dictionary) properties.disable_dictionary();
  for (const MadeColumn& column : columns) {
    if (file.encoding.empty()) break;
    const bool text = column.type.find("string") != std::string::npos;
    const bool floating = column.type == "double" || column.type == "float";
    if (file.encoding == "delta" && text) {
      properties.encoding(column.name, parquet::Encoding::DELTA_BYTE_ARRAY);
    } else if (file.encoding == "lengths" && text) {
      properties.encoding(column.name, parquet::Encoding::DELTA_LENGTH_BYTE_ARRAY);
    } else if (column.type == "int64" || column.type == "int32") {
      properties.encoding(column.name, parquet::Encoding::DELTA_BINARY_PACKED);
    } else if (floating) {
      properties.encoding(column.name, parquet::Encoding::BYTE_STREAM_SPLIT);
    }
  }
  if (file.new_pages) properties.data_page_version(parquet::ParquetDataPageVersion::V2);
  if (file.checksums) properties.enable_page_checksum();
  parquet::ArrowWriterProperties::Builder arrow_properties;
  arrow_properties.store_schema();
  const auto out = value_of(arrow::io::FileOutputStream::Open(path));
  require(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), out, file.rows_of_group,
                                     properties.build(), arrow_properties.build()));
  require(out->Close());
}

std::vector<std::string> parquet_compressions() {
  std::vector<std::string> names;
  for (const char* name : {"uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4_raw"}) {
    const auto type = arrow::util::Codec::GetCompressionType(name);
    if (type.ok() && arrow::util::Codec::IsAvailable(*type)) names.emplace_back(name);
  }
  return names;
}

}  // namespace ringfeed::testing
