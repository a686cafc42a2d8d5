//! Reading and writing of TBinary values, shared by all messages, on top of Apache's protocol types.
//!
//! The input protocol reads from a slice, so the lengths that a peer announces are limited by the bytes that it sent: strings
//! and containers longer than the whole slice are refused before memory is allocated.

use thrift::TConfiguration;
use thrift::protocol::{
    TBinaryInputProtocol, TBinaryOutputProtocol, TFieldIdentifier, TInputProtocol, TListIdentifier,
    TOutputProtocol, TType,
};

use crate::{Error, Limits};

pub(crate) type Input<'a> = TBinaryInputProtocol<&'a [u8]>;
pub(crate) type Output<'a> = TBinaryOutputProtocol<&'a mut Vec<u8>>;
pub(crate) type WriteResult = thrift::Result<()>;

/// A reader of `bytes` that accepts calls with and without a version (as Zipkin's Scribe server does).
pub(crate) fn input<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Input<'a>, Error> {
    let config = TConfiguration::builder()
        .max_frame_size(Some(bytes.len()))
        .max_message_size(Some(bytes.len()))
        .max_string_size(Some(bytes.len()))
        .max_container_size(Some(bytes.len()))
        .max_recursion_depth(Some(limits.max_depth))
        .build()?;
    Ok(TBinaryInputProtocol::with_config(bytes, false, config))
}

/// Reads one struct. `field` returns whether it read the field's value; other fields are skipped. A field with the right id
/// but another type therefore counts as unknown.
pub(crate) fn read_struct<'a>(
    input: &mut Input<'a>,
    mut field: impl FnMut(&mut Input<'a>, TType, i16) -> Result<bool, Error>,
) -> Result<(), Error> {
    input.read_struct_begin()?;
    loop {
        let header = input.read_field_begin()?;
        if header.field_type == TType::Stop {
            break;
        }
        if !field(input, header.field_type, header.id.unwrap_or(0))? {
            input.skip(header.field_type)?;
        }
    }
    input.read_struct_end()?;
    Ok(())
}

/// Reads a list of structs, each by `element`; a list of another type is skipped. `what` names the elements in the error if there
/// are more than `max_elements`.
pub(crate) fn read_struct_list<'a>(
    input: &mut Input<'a>,
    what: &'static str,
    max_elements: usize,
    mut element: impl FnMut(&mut Input<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    let header = input.read_list_begin()?;
    let count = usize::try_from(header.size).unwrap_or(0);
    if count > max_elements {
        return Err(Error::TooLarge { what, size: count as u64, limit: max_elements as u64 });
    }
    for _ in 0..count {
        if header.element_type == TType::Struct {
            element(input)?;
        } else {
            input.skip(header.element_type)?;
        }
    }
    Ok(())
}

/// Reads a string and replaces bytes that are not UTF-8: names come from C programs, and a bad byte must not cost the span.
pub(crate) fn read_text(input: &mut Input<'_>) -> Result<String, Error> {
    let bytes = input.read_bytes()?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// A writer that appends to `bytes`.
pub(crate) fn output(bytes: &mut Vec<u8>) -> Output<'_> {
    TBinaryOutputProtocol::with_config(bytes, true, TConfiguration::no_limits())
}

/// Runs `write`, appending to `bytes`. The protocol's errors are about broken transports, which a vector never is.
pub(crate) fn write_to(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Output<'_>) -> WriteResult) {
    write(&mut output(bytes)).expect("appending to a vector cannot fail");
}

/// Writes a field's header: the type and id that precede its value.
pub(crate) fn write_field(output: &mut Output<'_>, field_type: TType, id: i16) -> WriteResult {
    output.write_field_begin(&TFieldIdentifier::new::<Option<String>, String, i16>(None, field_type, id))
}

/// Writes one i64 field.
pub(crate) fn write_i64(output: &mut Output<'_>, id: i16, value: i64) -> WriteResult {
    write_field(output, TType::I64, id)?;
    output.write_i64(value)
}

/// Writes one i64 field if there is a value.
pub(crate) fn write_optional_i64(output: &mut Output<'_>, id: i16, value: Option<i64>) -> WriteResult {
    value.map_or(Ok(()), |value| write_i64(output, id, value))
}

/// Writes one string field.
pub(crate) fn write_bytes(output: &mut Output<'_>, id: i16, value: &[u8]) -> WriteResult {
    write_field(output, TType::String, id)?;
    output.write_bytes(value)
}

/// Writes one field with a list of structs.
pub(crate) fn write_struct_list<T>(
    output: &mut Output<'_>,
    id: i16,
    elements: &[T],
    element: impl Fn(&mut Output<'_>, &T) -> WriteResult,
) -> WriteResult {
    write_field(output, TType::List, id)?;
    let size = i32::try_from(elements.len()).unwrap_or(i32::MAX);
    output.write_list_begin(&TListIdentifier::new(TType::Struct, size))?;
    elements.iter().take(size as usize).try_for_each(|e| element(output, e))
}
